"""Other projects' requests and answers against the listener: gunicorn's and llhttp's.

    pip download --no-deps --no-binary :all: gunicorn && tar xf gunicorn-*.tar.gz
    python -m tests.conformance.corpora gunicorn-27.0.1/tests/requests llhttp/test

Each directory is an unpacked corpus, told by what is in it; llhttp's is in its repository, and in Debian's source
package of that name. Nothing of them is kept here. For each case it prints what its authors mean to come of it and what
comes of it here; differences are explained by EXPLAINED, and docs/http.md has them as a table. One that is not
explained makes the exit status 1.

A corpus of parsers has requests of which only the syntax counts. A request of HTTP/1.1 without a Host, which RFC 9112
has a server refuse, is given one, and told so.
"""

import argparse
import asyncio
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import uvloop

from tests.conformance.raw import Bench, bench, line
from tests.conformance.standin import OK, End, Reply

IDLE_SECONDS = 0.2
"""Without a byte for so long, nothing more comes. Only slower than it could be, since everything is on one machine."""

ASKED = b"GET /v1/x HTTP/1.1\r\nHost: a\r\n\r\n"
REFUSAL = re.compile(rb"HTTP/1\.1 ([45]\d\d) [^\r]*\r\ncontent-type: application/json\r\n")
NO_HOST = re.compile(rb"\A((?:\r\n)*[A-Z-]+ +[^ \r\n]+ +HTTP/1\.1\r\n)(?!.*^Host[ \t]*:)", re.S | re.M | re.I)


class Sample(NamedTuple):
    """A case of a corpus: `taken` messages are whole, and then there is something `wrong` or not. An `answer` is a
    replica's."""

    name: str
    data: bytes
    taken: int
    wrong: bool
    answer: bool = False


class Came(NamedTuple):
    """What came of it here: so many were taken, then one was refused with this status, or none (0)."""

    taken: int
    status: int

    def __str__(self) -> str:
        refused = f"refused with {self.status}" if self.status else ""
        return ", ".join(filter(None, [f"{self.taken} taken" if self.taken else "", refused])) or "waited for more"


def gunicorn(directory: Path) -> Iterator[Sample]:
    """tests/requests: `valid` ones are taken, `invalid` ones are not. Line ends are written as escapes."""
    for kind in ("valid", "invalid"):
        for path in sorted((directory / kind).glob("*.http")):
            data = path.read_bytes().replace(b"\n", b"").replace(b"\\r\\n", b"\r\n")
            data = data.replace(b"\\0", b"\0").replace(b"\\n", b"\n").replace(b"\\t", b"\t")
            data = re.sub(rb"\\x([0-9A-Fa-f]{2})", lambda found: bytes.fromhex(found[1].decode()), data)
            yield Sample(f"gunicorn {kind}/{path.stem}", data, int(kind == "valid"), kind == "invalid")


def llhttp(directory: Path) -> Iterator[Sample]:
    """test/**/*.md: under a heading, a block of `http` or `url` with its kind above it, and a block with the log of the
    parser's callbacks. What only a lenient parser takes is wrong."""
    block = re.compile(r"^#+ ([^\n]+)\n|<!--\s*meta=(\{.*?\})\s*-->|```(http|url|log)\n(.*?)```", re.S | re.M)
    for path in sorted(directory.rglob("*.md")):
        heading, meta, data, url = "", "", "", False
        for name, kind, form, text in block.findall(path.read_text()):
            if name:
                heading = name
            elif kind:
                meta = kind
            elif form == "log":
                yield _of_log(f"llhttp {path.relative_to(directory).with_suffix('')}: {heading}", meta, data, url, text)
            else:
                data, url = text, form == "url"


def _of_log(name: str, meta: str, text: str, url: bool, log: str) -> Sample:
    data = _unescaped(text)
    lenient = "lenient" in meta
    if url:
        return Sample(name, b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % data, int("error" not in log), "error" in log)
    paused = re.search(r'error code=\d+ reason="[^"]*(?:[Pp]ause|Connect|Upgrade)', log) or '"pause"' in meta
    wrong = lenient or ("error code=" in log and not paused)
    whole = max(log.count("message complete"), int(bool(paused)))
    return Sample(name + (" (lenient)" if lenient else ""), data, 0 if lenient else whole, wrong, '"response' in meta)


def _unescaped(text: str) -> bytes:
    """As llhttp's test runner reads a block."""
    text = re.sub(r"\\\n", "", text.removesuffix("\n")).replace("\n", "\r\n")
    for escape, char in ((r"\r", "\r"), (r"\n", "\n"), (r"\t", "\t"), (r"\f", "\f")):
        text = text.replace(escape, char)
    text = re.sub(r"\\x([0-9a-fA-F]+)", lambda found: chr(int(found[1], 16)), text)
    text = re.sub(r"\\([0-7]{1,3})", lambda found: chr(int(found[1], 8)), text)
    text = re.sub(r"\$\{'(.)'\.repeat\((\d+)\)\}", lambda found: found[1] * int(found[2]), text)
    return text.encode("utf-8")


async def _heard(on: Bench, data: bytes) -> bytes:
    """All that the router says to these bytes until it closes or nothing more comes."""
    heard = b""
    async with line(on.rig) as client:
        await client.send([data])
        try:
            while True:
                async with asyncio.timeout(IDLE_SECONDS):
                    more = await client.more()
                if not more:
                    return heard
                heard += more
        except TimeoutError:
            return heard


async def came(on: Bench, sample: Sample) -> Came:
    """What comes of a sample. Raises AssertionError where a replica got what no client was answered."""
    if sample.answer:
        on.standin.reply = Reply((sample.data,), End.SHUTS)
        on.rig.worker.pools["r1"].drop_idle()
        heard = await _heard(on, ASKED)
        on.standin.taken()
        refused = REFUSAL.search(heard)
        return Came(0, int(refused[1])) if refused else Came(int(b"x-homing-replica" in heard and _ends(heard)), 0)
    on.standin.reply = OK
    heard = await _heard(on, sample.data)
    relayed, refused = heard.count(b"x-homing-replica: "), REFUSAL.search(heard)
    assert len(on.standin.taken()) == relayed, f"{sample.name}: the replica and the client counted otherwise"
    return Came(relayed, int(refused[1]) if refused else 0)


def _ends(heard: bytes) -> bool:
    """Whether an answer is whole, or of a kind that has no body."""
    head, _, body = heard.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head:
        return body.endswith(b"0\r\n\r\n") or body.rstrip(b"\r\n").endswith(b"0") or b"\r\n0\r\n" in body
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return length is None or len(body) >= int(length[1]) or b" 304 " in head


EXPLAINED = {
    r"gunicorn valid/(005|031)|llhttp .*(Fragment in URI|chunked` as last transfer-encoding.*)|llhttp url: "
    r"(Absolute URL|Relative URL|URL fragment|Complex URL.*)": "A target has no fragment.",
    r"gunicorn valid/(025|025_line|029|030|rfc9112_smuggle_.*)": "Of codings, only `chunked` is undone here.",
    r"gunicorn valid/013": "White space in a chunk's extension.",
    r"gunicorn valid/(028|compat_obs_fold.*)": "A compatibility setting of gunicorn's.",
    r"gunicorn valid/031.*": "A method that llhttp does not know.",
    r"gunicorn valid/099": "Its Content-Length is larger than its body.",
    r"gunicorn valid/pp_.*": "The PROXY protocol is not spoken.",
    r"gunicorn valid/rfc9112_target_absolute_userinfo_01|llhttp .*(basic auth.*)": "A target names no user.",
    r"gunicorn valid/rfc9112_target_authority_.*|llhttp request/method: CONNECT.*|.*Underscore in hostname": (
        "CONNECT is not served."
    ),
    r"gunicorn invalid/(006|007|008|009|010|011|012|017|limit_.*)": "Its limits are smaller: a head may be 64 KB.",
    r"gunicorn invalid/019": "Who is behind the client is told, and not judged.",
    r"gunicorn invalid/(040|chunked_07)": "A name with an underscore is another name.",
    r"gunicorn invalid/041": "Two Content-Type are the engine's to judge.",
    r"gunicorn invalid/rfc9110_trailer_forbidden_host_01": "Trailers are dropped, whatever they are.",
    r"gunicorn invalid/rfc9112_leading_crlf_02": "Any number of empty lines before a request is skipped.",
    r"llhttp .*\(lenient\)": "What precedes what is wrong is taken; behind a last request nothing is.",
    r"llhttp .*(Content-Length reset when no body is received)": "Its runner takes the body away.",
    r"llhttp request/method: M-SEARCH request": "An asterisk is for OPTIONS.",
    r"llhttp request/method: PRI request HTTP2|llhttp .*(No HTTP version|HTTP version 0\.9)": "Only HTTP/1.1 and 1.0.",
    r"llhttp response/connection: .*(204 status|content-length|304 with.*)|llhttp response/pipelining: .*": (
        "More came than was asked for."
    ),
    r"llhttp response/connection: HTTP 101 .*": "No Upgrade was asked for.",
    r"llhttp response/connection: HTTP 103 first, then 200": "Its body is shorter than its length.",
    r"llhttp response/transfer-encoding: .*": "Of codings, only `chunked` passes.",
    r"llhttp url: IPv6 address with Zone ID.*": "A zone is of one machine; RFC 3986 has none.",
}
"""Patterns of names, and why those differ. docs/http.md says more of each."""


def agree(sample: Sample, got: Came) -> bool:
    """Whether it came as its authors mean: refused, taken, or begun and not whole."""
    if sample.taken:
        return got.taken > 0
    return got.taken == 0 if sample.wrong else got.status == 0


def reason(sample: Sample) -> str | None:
    """Why this one may differ; None where nobody has said."""
    return next((why for name, why in EXPLAINED.items() if re.fullmatch(name, sample.name)), None)


async def run(samples: list[Sample]) -> int:
    """Print a line for each sample that differs and the sums; 1 where a difference is not explained."""
    sums: Counter[str] = Counter()
    async with bench() as on:
        for sample in samples:
            given = sample
            if not sample.answer and NO_HOST.search(sample.data):
                given = sample._replace(data=NO_HOST.sub(rb"\1Host: a\r\n", sample.data, count=1))
            got = await came(on, given)
            agrees = agree(sample, got)
            why = None if agrees else reason(sample)
            sums["agreed" if agrees else "differs, explained" if why else "differs"] += 1
            if not agrees:
                meant = "refused" if sample.wrong and not sample.taken else f"{sample.taken} taken"
                print(f"{sample.name}: meant {meant}; {got}. {why or 'NOT EXPLAINED'}")  # noqa: T201
    print(", ".join(f"{times} {name}" for name, times in sums.items()))  # noqa: T201
    return int(sums["differs"] > 0)


def main() -> int:
    options = argparse.ArgumentParser(description="Run other projects' HTTP corpora against the listener.")
    options.add_argument("directory", nargs="+", type=Path)
    found: list[Sample] = []
    for directory in options.parse_args().directory:
        found += gunicorn(directory) if (directory / "invalid").is_dir() else llhttp(directory)
    return uvloop.run(run(found))


if __name__ == "__main__":
    sys.exit(main())
