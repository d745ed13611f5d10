"""A body becomes an ask, whatever a client sends: what can be read is routed by, and what cannot goes by load."""

import base64
import json
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.blocks import BLOCK_BYTES
from router.core.types import Ask
from router.proxy.answers import Style
from router.proxy.openai import ENDPOINTS, OTHER, Asker, Use, endpoint, stored_id

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
LONG = "All of this text is the same in every prompt of this test. " * 40


def ask(body: object, path: str = CHAT) -> Ask:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Asker(BLOCK_BYTES).read(endpoint(path), data).ask


def chat(content: object, **fields: object) -> Ask:
    return ask({"model": "m", "messages": [{"role": "user", "content": content}], **fields})


def shared(asks: Sequence[Ask]) -> int:
    """Blocks that all of them begin with."""
    blocks = 0
    for hashes in zip(*(one.chain for one in asks), strict=False):
        if len(set(hashes)) > 1:
            break
        blocks += 1
    return blocks


# What is read.


def test_a_chat_is_read() -> None:
    got = chat(LONG, stream=True)
    assert (got.model, got.streams, got.tokens) == ("m", True, None)
    assert got.size > len(LONG)
    assert len(got.chain) == got.size // BLOCK_BYTES > 3


def test_the_form_of_the_json_does_not_matter() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "\u00fc" + LONG}]}
    forms = [
        json.dumps(body),
        json.dumps(body, ensure_ascii=False),
        json.dumps(body, indent=3),
        json.dumps(dict(reversed(body.items()))),
    ]
    assert len({tuple(ask(form.encode()).chain) for form in forms}) == 1


def test_text_in_parts_is_the_same_text() -> None:
    assert chat(LONG) == chat([{"type": "text", "text": LONG}])


def test_conversations_share_what_they_begin_with() -> None:
    system = {"role": "system", "content": LONG}
    asks = [
        ask({"model": "m", "messages": [system, {"role": "user", "content": question * 200}]})
        for question in ("what? ", "why? ")
    ]
    assert shared(asks) == len(LONG) // BLOCK_BYTES


def test_a_prompt_may_be_text_a_list_or_token_ids() -> None:
    text = ask({"model": "m", "prompt": LONG}, COMPLETIONS)
    assert ask({"model": "m", "prompt": [LONG, "another"]}, COMPLETIONS) == text
    assert ask({"model": "m", "input": LONG}, EMBEDDINGS) == text
    assert ask({"model": "m", "input": [LONG, "another"]}, EMBEDDINGS) == text
    tokens = list(range(1000))
    for prompt in (tokens, [tokens, [1, 2]]):
        got = ask({"model": "m", "prompt": prompt}, COMPLETIONS)
        assert (got.tokens, got.size, len(got.chain)) == (1000, 4000, 4000 // BLOCK_BYTES)


def test_images_and_tools_are_part_of_the_prompt() -> None:
    def image(data: bytes) -> Ask:
        url = "data:image/png;base64," + base64.b64encode(data).decode()
        return chat([{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": LONG}])

    def tooled(name: str) -> Ask:
        return chat(LONG, tools=[{"type": "function", "function": {"name": name}}])

    for one, other in ((image(b"cat" * 999), image(b"dog" * 999)), (tooled("look"), tooled("find"))):
        assert shared([one, other]) == 0
        assert one.chain
    assert image(b"cat" * 999) == image(b"cat" * 999)


@pytest.mark.parametrize(
    "salt",
    [
        {"cache_salt": "tenant"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "high"},
        {"model": "n"},
    ],
    ids=lambda salt: next(iter(salt)),
)
def test_what_makes_equal_text_another_cache_makes_another_root(salt: dict[str, object]) -> None:
    plain, salted = chat(LONG), chat(LONG, **salt)
    assert plain.size == salted.size
    assert shared([plain, salted]) == 0
    assert plain.tail != salted.tail


@pytest.mark.parametrize(
    "field", [{"temperature": 0.5}, {"max_tokens": 7}, {"user": "u"}, {"stream": False}, {"seed": 1}]
)
def test_what_does_not_change_the_cache_does_not_change_the_root(field: dict[str, object]) -> None:
    assert chat(LONG, **field) == chat(LONG)


def test_null_content_beside_tool_calls_is_an_empty_turn() -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}}]
    turns = [
        {"role": "system", "content": LONG},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "seen"},
    ]
    got = ask({"model": "m", "messages": turns})
    assert got.size > len(LONG)
    assert list(got.answers) == [len(LONG) + len("\x1esystem\x1f")]


# What is not read, and goes by load.

NO_JSON = [
    b"",
    b"{",
    b"not json",
    b"[1, 2]",
    b"null",
    b"7",
    b'"text"',
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b'{"model": "m"} {"model": "m"}',
    b'{"model": "m", "messages": [{"role": "user", "content": "\xff"}]}',
    b'{"model": "m", "messages": [{"role": "user", "content": "' + b"\\" + b'ud800"}]}',
]


@pytest.mark.parametrize("body", NO_JSON)
@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_body_that_is_no_json_object_is_an_ask_without_a_prompt(path: str, body: bytes) -> None:
    got = ask(body, path)
    assert (got.size, got.chain, got.streams) == (0, (), False)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {}),
        (CHAT, {"messages": "text"}),
        (CHAT, {"messages": []}),
        (CHAT, {"messages": ["text"]}),
        (CHAT, {"messages": [None]}),
        (CHAT, {"messages": {"role": "user"}}),
        (COMPLETIONS, {}),
        (COMPLETIONS, {"prompt": None}),
        (COMPLETIONS, {"prompt": 7}),
        (COMPLETIONS, {"prompt": []}),
        (COMPLETIONS, {"prompt": [[]]}),
        (COMPLETIONS, {"prompt": {"text": "x"}}),
        (COMPLETIONS, {"prompt": [1, "x"]}),
        (COMPLETIONS, {"prompt": [1.5]}),
        (COMPLETIONS, {"prompt": [-1]}),
        (COMPLETIONS, {"prompt": [1 << 32]}),
        (EMBEDDINGS, {"input": None}),
        (EMBEDDINGS, {"messages": "text"}),
    ],
)
def test_a_prompt_of_another_form_keeps_its_model_and_has_no_chain(path: str, fields: dict[str, object]) -> None:
    got = ask({"model": "m", "stream": True, **fields}, path)
    assert (got.model, got.streams, got.size, got.chain) == ("m", True, 0, ())


@pytest.mark.parametrize("model", [None, 7, ["m"], {"m": 1}, True])
def test_a_model_that_is_no_name_is_none(model: object) -> None:
    assert chat(LONG, model=model).model is None


@pytest.mark.parametrize("stream", [None, 0, 1, "true", {}])
def test_only_true_streams(stream: object) -> None:
    assert not chat(LONG, stream=stream).streams


def holding(place: str, value: str) -> bytes:
    """A body that has a value in one of PLACES."""
    return b'{"model": "m", ' + place.replace("%s", value).encode() + b"}"


def nested(depth: int, opening: str, closing: str) -> str:
    return opening * depth + "1" + closing * depth


PLACES = [
    *('"messages": %s', '"messages": [%s]', '"messages": [{"role": %s}]', '"messages": [{"content": [%s]}]'),
    *('"messages": [{"content": [{"type": "image", "x": %s}]}]', '"messages": [{"name": %s}]'),
    *('"messages": [{"tool_calls": %s}]', '"messages": [{"tool_calls": [{"function": {"arguments": %s}}]}]'),
    *('"messages": [{"role": "user"}], "tools": %s', '"messages": [{"role": "user"}], "cache_salt": %s'),
    '"messages": [{"role": "user"}], "chat_template_kwargs": %s',
    '"messages": [{"role": "user"}], "reasoning_effort": %s',
    *('"model": %s', '"stream": %s', '"unknown": %s'),
]


@pytest.mark.parametrize("place", PLACES)
def test_no_depth_of_nesting_raises(place: str) -> None:
    """Decoders and encoders give up at depths of their own; what one takes the next may not."""
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        for depth in (*range(300, 1020, 2), 10_000, 100_000):
            assert isinstance(ask(holding(place, nested(depth, opening, closing))), Ask)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", ["1" + "0" * 30, "1" + "0" * 6000, "-1e300", "1e-400"])
def test_no_number_raises(place: str, number: str) -> None:
    assert isinstance(ask(holding(place, number)), Ask)


def test_a_body_of_5_mb_is_read() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "word " * 1_000_000}]}
    assert ask(body).size > 5_000_000


def test_a_body_that_is_no_json_is_looked_through_once() -> None:
    """Not once for each line that could begin a form's field: that took 12 s for 200 KB, and 32 MB are allowed."""
    script = (
        "from router.proxy.openai import Asker, endpoint\n"
        "body = b'name=\"model\"xxxxxxxxxx\\r\\n' * 100_000\n"
        "print(Asker(512).read(endpoint('/v1/audio/transcriptions'), body).ask.model)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=True)
    assert ran.stdout.split() == ["None"]


def test_the_model_of_a_form_is_peeked_at() -> None:
    form = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
        + bytes(range(256)) * 100
        + b'\r\n--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--x--\r\n'
    )
    assert ask(form, "/v1/audio/transcriptions") == Ask("whisper")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=15,
)
FIELDS = st.dictionaries(
    st.sampled_from([
        *("model", "messages", "prompt", "input", "instructions", "system", "query", "text_1", "tools", "stream"),
        *("cache_salt", "chat_template_kwargs", "reasoning_effort", "previous_response_id"),
    ]),
    JSON
    | st.lists(
        st.dictionaries(st.sampled_from(["role", "content", "name", "tool_calls", "tool_call_id"]), JSON, max_size=4),
        max_size=3,
    ),
)  # fmt: skip


@settings(deadline=None, max_examples=80)
@given(FIELDS, st.sampled_from(sorted(ENDPOINTS)))
def test_no_body_raises(fields: dict[str, object], path: str) -> None:
    got = ask(json.dumps(fields, allow_nan=True).encode(), path)
    assert len(got.chain) == got.size // BLOCK_BYTES


# The table.


@pytest.mark.parametrize(
    ("path", "name", "use"),
    [
        (CHAT, "chat", Use.PROMPT),
        (COMPLETIONS, "completions", Use.PROMPT),
        (EMBEDDINGS, "embeddings", Use.PROMPT),
        ("/v1/models", "models", Use.MODELS),
        ("/health", "health", Use.HEALTH),
        ("/v1/responses/resp_1/cancel", "responses", Use.STORED),
        ("/v1/audio/speech", "audio", Use.MODEL),
        ("/sleep", "control", Use.CONTROL),
        ("/reset_prefix_cache", "control", Use.CONTROL),
        ("/%73leep", "control", Use.CONTROL),
        ("//sleep", "control", Use.CONTROL),
        ("/v1/./../sleep", "control", Use.CONTROL),
        ("/%2e%2e/reset_mm_cache", "control", Use.CONTROL),
        ("/v1%2Fchat/completions", "chat", Use.PROMPT),
        ("/v1/unheard-of", "other", Use.LOAD),
        ("/v1/chat/completions/", "other", Use.LOAD),
        ("/", "other", Use.LOAD),
    ],
)
def test_the_first_row_that_matches_tells_what_becomes_of_a_path(path: str, name: str, use: Use) -> None:
    assert endpoint(path)[:2] == (name, use)


def test_engine_control_may_be_allowed_path_by_path() -> None:
    assert endpoint("/sleep", {"/sleep"}) is OTHER
    assert endpoint("/wake_up", {"/sleep"}).use is Use.CONTROL


def test_a_stored_response_is_named_by_its_path() -> None:
    assert [stored_id(path) for path in ("/v1/responses/resp_1", "/v1/responses/resp_1/cancel", CHAT)] == [
        "resp_1",
        "resp_1",
        None,
    ]


def test_errors_have_the_form_of_the_api_that_was_asked() -> None:
    assert [endpoint(path).style for path in (CHAT, "/v1/responses", "/v1/messages")] == list(Style)
