"""Single values: what is taken, what is refused, and what is suggested instead."""

import pytest

from router.values import Endpoint, Kind, Wrong, address, duration, host, literal, shown, size, url, written


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("2s", 2.0), ("1.5m", 90.0), ("1h", 3600.0), ("0s", 0.0)]
)
def test_durations_are_read_and_written_again(text: str, seconds: float) -> None:
    assert duration(text) == seconds
    assert duration(written(Kind.DURATION, seconds)) == seconds


@pytest.mark.parametrize(
    ("value", "suggestion"),
    [
        (30, "30s"),
        (0.5, "0.5s"),
        ("30", "30s"),
        ("30 s", "30s"),
        ("30sec", "30s"),
        ("5 minutes", "5m"),
        ("5Min", "5m"),
        ("2hours", "2h"),
        ("100milliseconds", "100ms"),
        ("1m30s", "90s"),
        ("1h30m", "90m"),
        ("5d", None),
        ("soon", None),
        ("-5s", None),
        (True, None),
        (None, None),
        ([], None),
    ],
)
def test_no_duration(value: object, suggestion: str | None) -> None:
    with pytest.raises(Wrong) as raised:
        duration(value)
    assert (raised.value.code, raised.value.suggestion) == ("H105", suggestion)


@pytest.mark.parametrize(
    ("text", "count"), [("1KiB", 1024), ("32MiB", 32 << 20), ("2GiB", 2 << 30), ("1536MiB", 3 << 29)]
)
def test_sizes_are_read_and_written_again(text: str, count: int) -> None:
    assert size(text) == count
    assert written(Kind.SIZE, count) == text


@pytest.mark.parametrize(
    ("value", "suggestion"),
    [
        (32, "32MiB"),
        (33554432, "32MiB"),
        ("32MB", "32MiB"),
        ("32 mb", "32MiB"),
        ("32m", "32MiB"),
        ("1g", "1GiB"),
        ("512k", "512KiB"),
        ("1.5GiB", None),
        ("10B", None),
        ("big", None),
    ],
)
def test_no_size(value: object, suggestion: str | None) -> None:
    with pytest.raises(Wrong) as raised:
        size(value)
    assert (raised.value.code, raised.value.suggestion) == ("H105", suggestion)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("0.0.0.0:0", "0.0.0.0", 0),
        ("[::1]:80", "::1", 80),
        ("localhost:65535", "localhost", 65535),
        ("router-0.homing.svc:8080", "router-0.homing.svc", 8080),
    ],
)
def test_addresses_are_read_and_written_again(text: str, host: str, port: int) -> None:
    assert address(text) == Endpoint(host, port)
    assert str(address(text)) == text


@pytest.mark.parametrize(
    ("value", "suggestion"),
    [
        (8080, "127.0.0.1:8080"),
        ("8080", "127.0.0.1:8080"),
        (":8080", "0.0.0.0:8080"),
        ("*:8080", "0.0.0.0:8080"),
        ("http://10.0.0.1:8080/", "10.0.0.1:8080"),
        ("::1:8080", '"[::1]:8080"'),
        ("10.0.0.1", None),
        ("10.0.0.1:", None),
        ("10.0.0.1:http", None),
        ("10.0.0.1:65536", None),
        ("10.0.0.1:\u0663", None),
        ("10.0.0:80", None),
        ("a b:80", None),
        ("[]:80", None),
        (None, None),
        ({}, None),
    ],
)
def test_no_address(value: object, suggestion: str | None) -> None:
    with pytest.raises(Wrong) as raised:
        address(value)
    assert (raised.value.code, raised.value.suggestion) == ("H111", suggestion)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("http://10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("http://10.0.0.1:8000/", "http://10.0.0.1:8000"),
        ("http://engine/base/", "http://engine/base"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("https://engine.example", "https://engine.example"),
        ("https://[::1]:8443/base/", "https://[::1]:8443/base"),
    ],
)
def test_urls_are_read_without_a_trailing_slash(text: str, read: str) -> None:
    assert url(text) == read


@pytest.mark.parametrize(
    ("value", "code", "suggestion"),
    [
        ("10.0.0.1:8000", "H112", "http://10.0.0.1:8000"),
        ("engine", "H112", "http://engine"),
        ("//engine:80", "H112", "http://engine:80"),
        ("http:engine:80", "H112", "http://engine:80"),
        ("https:engine:80", "H112", "https://engine:80"),
        ("https://engine..example", "H112", None),
        ("https://-engine", "H112", None),
        ("grpc://engine:80", "H112", "http://engine:80"),
        ("http://engine:80/v1", "H113", "http://engine:80"),
        ("http://engine:80/base/v1/", "H113", "http://engine:80/base"),
        ("http://u:p@engine:80", "H112", "http://engine:80"),
        ("http://engine:80?x=1", "H112", "http://engine:80"),
        ("http://engine:0", "H112", None),
        ("http://engine:port", "H112", None),
        ("http://[::1", "H112", None),
        ("http://", "H112", None),
        ("http://a b", "H112", None),
        ("", "H112", None),
        (8000, "H112", "http://8000"),
    ],
)
def test_no_url(value: object, code: str, suggestion: str | None) -> None:
    with pytest.raises(Wrong) as raised:
        url(value)
    assert (raised.value.code, raised.value.suggestion) == (code, suggestion)


@pytest.mark.parametrize("value", ["engine", "a_b.example", "10.0.0.1", "::1", "x" * 63, None])
def test_hosts_that_a_certificate_can_be_for(value: object) -> None:
    assert host(value) == value


@pytest.mark.parametrize(
    ("value", "suggestion"),
    [
        ("", None),
        (".engine", None),
        ("a..b", None),
        ("a b", None),
        ("engine:8443", None),
        ("x" * 64, None),
        ("https://engine:8443/x", "engine"),
        ("https://a..b", None),
    ],
)
def test_and_what_is_no_such_host(value: str, suggestion: str | None) -> None:
    with pytest.raises(Wrong) as raised:
        host(value)
    assert (raised.value.code, raised.value.suggestion) == ("H124", suggestion)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (True, "true"), (18.0, "18"), (0.95, "0.95"), (3.9e-8, "3.9e-08"), (["/a"], '["/a"]'), ("x", "x")],
)
def test_literals_are_what_a_file_would_have(value: object, text: str) -> None:
    assert literal(value) == text


def test_a_long_value_is_shortened_in_messages() -> None:
    assert len(shown("x" * 1000)) < 70
