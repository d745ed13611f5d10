"""What is told of certificates and keys beside what the golden files show: dates, bundles, what never is told."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from router.certificates import examine, examine_redis, expiries, validity
from router.tls import Pems, certificates
from tests.authority import openssl

GOLDEN = Path(__file__).parents[1] / "golden" / "config" / "tls"
NOW = datetime(2030, 6, 1, tzinfo=UTC)


def pem(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


ROUTER = Pems(certificate=pem("router.pem"), key=pem("router.key"))


def codes(pems: Pems, now: datetime = NOW) -> list[str]:
    return [finding.code for finding in examine(pems, now)]


def test_a_good_pair_and_a_good_ca_are_nothing_to_tell_of() -> None:
    pair = (ROUTER.certificate, ROUTER.key)
    assert codes(Pems()) == []
    assert codes(Pems(*pair, pem("ca.pem"), pem("ca.pem"), *pair)) == []


def test_what_is_for_redis_may_hold_certificate_and_key_in_one_file() -> None:
    certificate, key, ca = pem("router.pem"), pem("router.key"), pem("ca.pem")

    def found(ca: bytes | None, shown: bytes | None, private: bytes | None) -> list[tuple[str, str]]:
        return [(code, ".".join(map(str, path))) for code, path, *_ in examine_redis(ca, shown, private, NOW)]

    assert found(None, None, None) == found(ca, certificate, key) == found(ca, key + certificate, None) == []
    assert found(None, certificate, None) == [("H141", "gossip.tls.cert_file")]
    assert found(None, certificate, pem("locked.key")) == [("H143", "gossip.tls.key_file")]
    assert found(None, certificate, pem("other.key")) == [("H142", "gossip.tls.key_file")]
    assert found(key, None, None) == [("H141", "gossip.tls.ca_file")]


@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [
        ("expired.pem", datetime(2019, 1, 1, tzinfo=UTC), datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("early.pem", datetime(2100, 1, 2, 3, 0, 0, tzinfo=UTC), datetime(2125, 12, 31, tzinfo=UTC)),
        ("router.pem", datetime(2026, 1, 1, tzinfo=UTC), datetime(2125, 12, 31, tzinfo=UTC)),
    ],
)
def test_dates_are_read_in_both_forms(name: str, begin: datetime, end: datetime) -> None:
    """RFC 5280: two digits of a year before 2050, four from then on."""
    [text] = certificates(pem(name))
    assert validity(text) == (begin, end)


def test_a_certificate_is_valid_from_its_first_second_to_its_last() -> None:
    begin, end = validity(certificates(pem("router.pem"))[0])
    second = timedelta(seconds=1)
    assert [codes(ROUTER, now) for now in (begin - second, begin, end, end + second)] == [["H144"], [], [], ["H144"]]


def test_when_certificates_expire_is_told_by_whom_they_are_shown() -> None:
    pems = ROUTER._replace(replicas_certificate=pem("expired.pem"), replicas_key=pem("router.key"))
    told = {"clients": datetime(2125, 12, 31, tzinfo=UTC), "replicas": datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)}
    assert expiries(pems) == {to: at.timestamp() for to, at in told.items()}
    assert expiries(Pems()) == {}


def test_a_bundle_is_good_while_one_of_its_certificates_is() -> None:
    bundle = b"# Autorit\xc3\xa9, et \xff\n" + pem("expired.pem") + b"between\n" + pem("ca.pem")
    assert codes(Pems(replicas_ca=bundle)) == []
    assert codes(Pems(replicas_ca=pem("expired.pem"))) == ["H144"]


def test_of_a_chain_the_first_certificate_counts() -> None:
    chain = pem("router.pem") + pem("expired.pem")
    assert codes(ROUTER._replace(certificate=chain)) == []
    assert codes(ROUTER._replace(certificate=pem("expired.pem") + pem("router.pem"))) == ["H144"]


def test_a_key_of_another_kind_is_not_the_certificates(tmp_path: Path) -> None:
    rsa = tmp_path / "rsa.key"
    openssl("genrsa", "-out", rsa, 2048)
    assert codes(ROUTER._replace(key=rsa.read_bytes())) == ["H142"]


@pytest.mark.parametrize("cipher", ["-aes128", "-des3"])
def test_a_password_is_found_in_either_form_of_a_key(tmp_path: Path, cipher: str) -> None:
    locked = tmp_path / "locked.key"
    openssl("genrsa", cipher, "-passout", "pass:x", "-traditional", "-out", locked, 2048)
    assert b"Proc-Type: 4,ENCRYPTED" in locked.read_bytes()
    assert codes(ROUTER._replace(key=locked.read_bytes())) == ["H143"]


MANGLES: list[Callable[[bytes], bytes]] = [
    lambda text: text.replace(b"A", b"B", 3),
    lambda text: text.replace(b"\n", b"", 5),
    lambda text: text[: len(text) // 2],
    lambda text: text[len(text) // 2 :],
    lambda text: text + text[:50],
    lambda text: text.replace(b"-----END", b"-----EN"),
    lambda text: b"",
    lambda text: b"\0" * 100,
]


@pytest.mark.parametrize("mangle", MANGLES)
@pytest.mark.parametrize("field", ["certificate", "key", "client_ca"])
def test_whatever_a_file_holds_it_is_good_or_told_of_and_never_quoted(
    field: str, mangle: Callable[[bytes], bytes]
) -> None:
    good = ROUTER._replace(client_ca=pem("ca.pem"))
    findings = examine(good._replace(**{field: mangle(getattr(good, field))}), NOW)
    told = " ".join(finding.message + str(finding.remedy) for finding in findings)
    assert not any(line and line in told for line in pem("router.key").decode().splitlines()[1:-1])
    assert all(finding.code in {"H141", "H142"} for finding in findings)


def test_what_the_files_hold_is_not_in_their_names() -> None:
    assert repr(ROUTER) == "Pems(certificate, key)"
