"""A request that the router reads for routing still reaches the replica byte for byte, and one that it cannot read is
the engine's to refuse: never a 500, never a schema of the router's own."""

import json

import pytest

from tests.conformance.raw import Bench, Case, came, head, table, upstream

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON = b"Content-Type: application/json"
FORM = b"Content-Type: multipart/form-data; boundary=b"
DEEP = b'{"model":"sim","messages":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
PART = b"--b\r\nContent-Disposition: form-data; name="
UPLOAD = (
    PART + b'"model"\r\n\r\nsim\r\n' + PART + b'"file"; filename="a.wav"\r\n\r\n' + bytes(range(256)) + b"\r\n--b--\r\n"
)


def passes(name: str, path: str, body: object, kind: bytes = JSON) -> Case:
    """It reaches the replica as it came."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    start = b"POST " + path.encode()
    sent = head(start + b" HTTP/1.1", b"Host: a", kind, b"Content-Length: %d" % len(data)) + data
    return Case(f"{name} on {path}", "9110 7.7", sent, (200,), True, (upstream(start, kind, body=data),))


CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]

CASES = [
    passes(
        "fields that only one engine knows",
        CHAT,
        {
            "model": "sim",
            "messages": HELLO,
            "return_token_ids": True,
            "chat_template_kwargs": {"x": 1},
            "vllm_xargs": {},
        },
    ),
    passes(
        "a tool without parameters",
        CHAT,
        {"model": "sim", "messages": HELLO, "tools": [{"type": "function", "function": {"name": "f"}}]},
    ),
    passes(
        "a role that nobody knows", CHAT, {"model": "sim", "messages": [{"role": "latest_reminder", "content": "x"}]}
    ),
    passes("messages that are a text", CHAT, {"model": "sim", "messages": "hello"}),
    passes("messages that are missing", CHAT, {"model": "sim"}),
    passes("messages that are null", CHAT, {"model": "sim", "messages": None}),
    passes("a message that is a number", CHAT, {"model": "sim", "messages": [1]}),
    passes(
        "a text part that is null",
        CHAT,
        {"model": "sim", "messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]},
    ),
    passes(
        "a part of a kind that nobody knows",
        CHAT,
        {"model": "sim", "messages": [{"role": "user", "content": [{"type": "hologram", "x": 1}]}]},
    ),
    passes(
        "an image",
        CHAT,
        {
            "model": "sim",
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}
            ],
        },
    ),
    passes("a lone surrogate", CHAT, rb'{"model":"sim","messages":[{"role":"user","content":"\ud800"}]}'),
    passes(
        "escapes and white space",
        CHAT,
        b' { "model" : "sim" ,\r\n"messages":[{"content":"\\u00e4\\/","role":"user"}] }\n',
    ),
    passes("a key that comes twice", CHAT, b'{"model":"sim","model":"sim","messages":[]}'),
    passes("bytes that are no UTF-8", CHAT, b'{"model":"sim","messages":[{"role":"user","content":"\xff\xfe"}]}'),
    passes("numbers that JSON does not know", CHAT, b'{"model":"sim","temperature":NaN}'),
    passes("a mark of the byte order", CHAT, b'\xef\xbb\xbf{"model":"sim"}'),
    passes("a body of 40,000 brackets", CHAT, DEEP),
    *(
        passes(name, path, body)
        for path in (
            CHAT,
            "/v1/completions",
            "/v1/responses",
            "/v1/messages",
            "/v1/embeddings",
            "/v1/rerank",
            "/v1/score",
            "/tokenize",
            "/pooling",
            "/classify",
        )
        for name, body in {
            "broken JSON": b'{"model": "sim", ',
            "no body": b"",
            "a list": b"[1, 2]",
            "a number": b"7",
            "null": b"null",
        }.items()
    ),
    passes("a prompt of texts", "/v1/completions", {"model": "sim", "prompt": ["a", "b"]}),
    passes("a prompt of tokens", "/v1/completions", {"model": "sim", "prompt": [1, 2, 3]}),
    passes("several prompts of tokens", "/v1/completions", {"model": "sim", "prompt": [[1, 2], [3]]}),
    passes("a prompt of nothing", "/v1/completions", {"model": "sim", "prompt": []}),
    passes("tokens that are none", "/v1/completions", {"model": "sim", "prompt": [-1, 99999999999999999999]}),
    passes("an input that is a number", "/v1/responses", {"model": "sim", "input": 5}),
    passes(
        "a response that nobody stores",
        "/v1/responses",
        {"model": "sim", "input": "x", "previous_response_id": "resp_0"},
    ),
    passes(
        "a system text in parts",
        "/v1/messages",
        {"model": "sim", "system": [{"type": "text", "text": "x"}], "messages": HELLO},
    ),
    passes(
        "an upload",
        "/v1/audio/transcriptions",
        UPLOAD,
        FORM,
    ),
    passes("an upload without a model", "/v1/audio/translations", b"--b\r\n\r\n--b--\r\n", FORM),
    passes("a path that nobody knows", "/v2/unheard-of", b"\x00\x01\x02", b"Content-Type: application/octet-stream"),
]


@table(CASES)
async def test_body(on: Bench, case: Case) -> None:
    assert await came(on, case) == case.outcome


async def test_a_model_that_nobody_serves_is_404_and_reaches_nobody(on: Bench) -> None:
    body = json.dumps({"model": "other", "messages": HELLO}).encode()
    sent = head(b"POST /v1/chat/completions HTTP/1.1", b"Host: a", b"Content-Length: %d" % len(body)) + body
    assert await came(on, Case("", "", sent, (404,), True)) == ((404,), True, ())
