"""Where Redis is: every form of its URL, and what is said of one that is wrong."""

import pytest

from router.redisurl import RedisUrl, check, parse
from router.values import Wrong


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("redis://redis", RedisUrl(False, "", (("redis", 6379),), "", 0)),
        ("redis://10.0.0.1:7000/3", RedisUrl(False, "", (("10.0.0.1", 7000),), "", 3)),
        ("rediss://[::1]:7000/", RedisUrl(True, "", (("::1", 7000),), "", 0)),
        ("redis+sentinel://a,b:5/main", RedisUrl(False, "sentinel", (("a", 26379), ("b", 5)), "main", 0)),
        ("rediss+sentinel://a/main/2", RedisUrl(True, "sentinel", (("a", 26379),), "main", 2)),
        ("redis+cluster://a,b:5", RedisUrl(False, "cluster", (("a", 6379), ("b", 5)), "", 0)),
    ],
)
def test_each_form_is_read(text: str, meant: RedisUrl) -> None:
    assert parse(text) == meant
    assert check(text) == text


def test_null_is_no_redis() -> None:
    assert check(None) is None


@pytest.mark.parametrize(
    ("text", "said", "suggestion"),
    [
        ("redis:6379", "is a Redis URL", "redis://redis:6379"),
        ("http://redis:6379", "is a Redis URL", None),
        ("redis://", "is a Redis URL", None),
        ("redis://a:99999", "is a Redis URL", None),
        ("redis://a:0", "is a Redis URL", None),
        ("redis://a,,b", "is a Redis URL", None),
        ("redis://a,b", "names several hosts", None),
        ("redis://a/x", "ends in `x`", None),
        ("redis+cluster://a/1", "ends in `1`", None),
        ("redis+sentinel://a", "does not name Sentinel's service", None),
        ("redis+sentinel://a/main/x", "ends in `x`", None),
        ("redis://homing:hunter2@redis/1", "has a user or password in it", "redis://redis/1"),
        ("rediss+sentinel://:hunter2@a/main", "has a user or password in it", "rediss+sentinel://a/main"),
        (6379, "is a Redis URL", None),
    ],
)
def test_what_is_none_is_said_and_what_was_meant(text: object, said: str, suggestion: str | None) -> None:
    with pytest.raises(Wrong, match=said) as caught:
        parse(text)
    assert (caught.value.code, caught.value.suggestion) == ("H130", suggestion)
    assert "hunter2" not in str(caught.value) + str(caught.value.suggestion)
