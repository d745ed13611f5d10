"""A big body says of its request what it would say if it were read as it is, and no other request waits for that."""

import base64
import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.blocks import BLOCK_BYTES
from router.core.record import Phase
from router.core.types import Ask
from router.proxy import condense
from router.proxy.condense import BIG, QUOTES, TEXT, Condenser
from router.proxy.openai import Asker, endpoint, is_big
from tests.browser import asked, chat, connected, post
from tests.rig import scripted, until
from tests.scripted import whole

CHAT = endpoint("/v1/chat/completions")
ASKER = Asker(BLOCK_BYTES)
HASH = 32


def condensed(body: bytes) -> Condenser:
    condenser = Condenser(body)
    for _ in condenser.slices():
        pass
    return condenser


def read_condensed(body: bytes) -> Ask:
    return ASKER.read_condensed(CHAT, body, condensed(body)).ask


def kept(body: bytes) -> Any:
    """What the small body of a big one says. Raises ValueError when it is no JSON."""
    small = condensed(body).body
    assert small is not None
    return json.loads(small)


def conversation(*contents: object, **fields: object) -> dict[str, object]:
    roles = ("user", "assistant")
    turns = [{"role": roles[number % 2], "content": content} for number, content in enumerate(contents)]
    return {"messages": turns, "model": "m", **fields}


def image(seed: int, size: int = 3 << 20) -> dict[str, object]:
    data = base64.b64encode(Random(seed).randbytes(size * 3 // 4)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}", "detail": "low"}}


def words(size: int) -> str:
    return ("so many words " * (size // 14 + 1))[:size]


def ask(*contents: object, **fields: object) -> Ask:
    body = json.dumps(conversation(*contents, **fields)).encode()
    assert is_big(CHAT, body)
    return ASKER.read(CHAT, body).ask


def shared(one: Ask, other: Ask) -> int:
    """Blocks that both begin with."""
    same = [mine == theirs for mine, theirs in zip(one.chain, other.chain, strict=False)]
    return same.index(False) if False in same else len(same)


# What is read of it.

TEXTS = st.text(st.characters() | st.sampled_from('"\\\u2028\U0001f3e0'), max_size=200)
PARTS = st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}) | st.builds(
    image, st.integers(0, 9), st.sampled_from([30, 100, 6000])
)
CONTENTS: st.SearchStrategy[Any] = TEXTS | st.none() | st.lists(PARTS, max_size=4)


@settings(deadline=None)
@given(st.lists(CONTENTS, min_size=1, max_size=5), st.booleans(), st.sampled_from([None, 2]))
def test_a_body_that_lacks_no_text_says_the_same_when_it_is_condensed(
    contents: Sequence[object], ascii_only: bool, indent: int | None
) -> None:
    fields = conversation(*contents, stream=True, cache_salt='a"b', tools=[{"function": {"description": "x" * 99}}])
    body = json.dumps(fields, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    assert read_condensed(body) == ASKER.read(CHAT, body).ask


@settings(deadline=None)
@given(st.binary(max_size=300) | st.text('{}[]":,\\u0 a', max_size=300).map(str.encode))
def test_what_is_no_json_does_no_harm(body: bytes) -> None:
    assert isinstance(read_condensed(b"{" + body), Ask)


def test_a_conversation_keeps_its_chain_when_its_body_becomes_big() -> None:
    short = [words(200_000), "so it is", [image(1, 500_000), {"type": "text", "text": "what is this?"}]]
    long = [*short, "a house", [image(2), {"type": "text", "text": words(10_000)}]]
    before = ASKER.read(CHAT, json.dumps(conversation(*short)).encode()).ask
    assert len(before.chain) > 300
    assert shared(before, ask(*long)) == len(before.chain)


def test_images_count_by_their_hash_and_not_by_their_size() -> None:
    one, same, other = (ask([image(seed), {"type": "text", "text": words(2000)}]) for seed in (1, 1, 2))
    assert one == same
    assert shared(one, other) == 0
    assert one.size < 3000


FILLERS = ["x", "\u00e4", "\u65e5", "\U0001f3e0", '"', "\\", "\n", '\\"', "word ", "\\\U0001f3e0", "\u65e5\n"]


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("filler", FILLERS)
def test_text_is_cut_between_two_characters(filler: str, ascii_only: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(condense, "TEXT", 5000)
    for offset in range(14):
        text = "." * (4000 + offset) + filler * 1500
        body = json.dumps(conversation(text), ensure_ascii=ascii_only).encode()
        [message] = kept(body)["messages"]
        assert text.startswith(message["content"][:-HASH])
        left_out = json.dumps(text[len(message["content"]) - HASH :], ensure_ascii=ascii_only).encode()[1:-1]
        assert condensed(body).omitted == len(left_out)
        written = len(json.dumps(text, ensure_ascii=ascii_only).encode()) - 2
        assert 5000 - 12 <= written - len(left_out) <= 5000


def test_text_beyond_what_is_read_counts_in_the_size_and_in_the_hashes() -> None:
    one, same, other = (ask(words(5 << 20) + end, "yes", words(4000)) for end in ("a", "a", "b"))
    assert one == same
    assert one.size > 5 << 20
    assert shared(one, other) == TEXT // BLOCK_BYTES
    assert len(one.chain) == TEXT // BLOCK_BYTES
    assert one.tail != other.tail


def test_what_stands_behind_the_read_text_is_found_all_the_same() -> None:
    got = ask(*[words(4000)] * 3000, stream=True)
    assert (got.model, got.streams) == ("m", True)
    assert got.size > 12_000_000
    assert TEXT // BLOCK_BYTES < len(got.chain) < 2 * TEXT // BLOCK_BYTES


@pytest.mark.parametrize("prompt", [list(range(500_000)), ["of a list only the first one counts"] * 100_000])
def test_a_body_of_too_many_values_goes_by_its_model(prompt: list[object]) -> None:
    body = json.dumps({"prompt": prompt, "model": "m", "stream": True}).encode()
    assert ASKER.read(endpoint("/v1/completions"), body).ask == Ask("m", streams=True)


def test_other_bodies_are_not_condensed() -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--x' + bytes(BIG)
    assert ASKER.read(endpoint("/v1/audio/transcriptions"), form).ask == Ask("whisper")
    assert not is_big(CHAT, b"[" + b" " * BIG)
    assert not is_big(CHAT, b"{" + b" " * (BIG - 1))
    assert not is_big(endpoint("/v1/unheard-of"), b"{" + b" " * BIG)
    assert ASKER.read(CHAT, b"{" + b" " * BIG).ask == Ask(None)


# What it costs others.


class Counted(bytes):
    """A body that counts how often it is looked through."""

    finds = 0

    def find(self, *args: Any) -> int:
        self.finds += 1
        return super().find(*args)


@pytest.mark.parametrize("content", ['"quoted" ' * 100_000, ["a"] * 100_000, [image(1)]], ids=["one", "many", "image"])
def test_a_slice_looks_at_so_many_quotes(content: object) -> None:
    body = Counted(json.dumps(conversation(content)).encode())
    largest = before = 0
    for _ in Condenser(body).slices():
        largest, before = max(largest, body.finds - before), body.finds
    assert 0 < largest <= QUOTES


def big(quotes: int = 20_000) -> bytes:
    return post("/v1/chat/completions", {**conversation('"' * quotes + words(BIG)), "model": "sim"})


async def test_small_requests_are_answered_while_a_big_body_is_read() -> None:
    async with scripted(whole()) as (rig, [replica]), connected(rig) as client:
        async with rig.worker.proxy.reading:
            await client.send(big())
            await until(lambda: rig.worker.proxy.tasks)
            assert (await asked(rig, chat())).status == 200
            assert len(replica.calls) == 1
        assert (await client.answer()).status == 200
        assert len(replica.calls[1].body) > BIG


async def test_big_bodies_are_read_one_after_the_other_and_each_is_answered() -> None:
    async with scripted(whole()) as (rig, [replica]), connected(rig) as one, connected(rig) as other:
        for client in (one, other):
            await client.send(big())
        for client in (one, other):
            assert (await client.answer()).status == 200
        assert len({call.body for call in replica.calls}) == 1
        assert len(replica.calls) == 2


@pytest.mark.parametrize("turns", [0, 3])
async def test_a_client_that_leaves_while_its_big_body_is_read_is_sent_nowhere(turns: int) -> None:
    async with scripted(whole()) as (rig, [replica]):
        async with connected(rig) as client:
            async with rig.worker.proxy.reading:
                await client.send(big(BIG))
                await until(lambda: rig.worker.proxy.tasks)
                if not turns:
                    client.leave()
                    await until(lambda: rig.records)
            if turns:
                await until(lambda: rig.worker.proxy.reading.locked())
                client.leave()
                await until(lambda: rig.records)
        await rig.quiet()
        assert (rig.record.left, rig.record.attempts) == (Phase.UPLOADING, [])
        assert replica.calls == []
        assert (await asked(rig, big())).status == 200
