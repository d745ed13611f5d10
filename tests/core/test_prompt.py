"""Request -> root and prompt bytes: golden values, what must be equal, what must differ, and what is no prompt."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.blocks import chain
from router.core.prompt import NO_SECRET, NoPrompt, Prompt, chat, completion, root, token_bytes

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "prompts.json").read_text())

SYSTEM = {"role": "system", "content": "You are a clerk."}
QUESTION = {"role": "user", "content": "Where is my parcel?"}

ANY_TEXT = st.text(st.characters(), max_size=8)  # Lone surrogates too: a JSON decoder lets them through.
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | ANY_TEXT,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(ANY_TEXT, values, max_size=3),
    max_leaves=6,
)
ODD_CALL = ANY_JSON | st.fixed_dictionaries({"function": ANY_JSON | st.fixed_dictionaries({"arguments": ANY_JSON})})
ODD_PART = ANY_JSON | st.fixed_dictionaries({"type": ANY_JSON, "text": ANY_JSON})
ODD_MESSAGE = ANY_JSON | st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["system", "assistant"]) | ANY_JSON,
        "content": ANY_JSON | st.lists(ODD_PART, max_size=3),
        "name": ANY_JSON,
        "tool_calls": ANY_JSON | st.lists(ODD_CALL, max_size=2),
        "tool_call_id": ANY_JSON,
    },
)
PLAIN_MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"]), "content": ANY_TEXT})


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


def said(content: Any, **fields: Any) -> bytes:
    return chat([{"role": "user", "content": content, **fields}]).data


@pytest.mark.parametrize("golden", GOLDEN["chats"], ids=lambda golden: golden["name"])
def test_a_conversation_becomes_its_golden_bytes(golden: dict[str, Any]) -> None:
    found = chat(golden["messages"], golden.get("tools", "").encode(), golden.get("tools_first", False))
    answers = {int(start): end for start, end in golden["answers"].items()}
    assert found == Prompt(golden["data"].encode(), answers, None)


@pytest.mark.parametrize("golden", GOLDEN["roots"], ids=lambda golden: f"{golden['secret']} {golden['parts']}")
def test_a_root_is_its_golden_value(golden: dict[str, Any]) -> None:
    assert f"{root(golden['secret'].encode(), *golden['parts']):016x}" == golden["root"]


def test_golden_roots_are_those_of_the_constant_secret() -> None:
    assert NO_SECRET == b"homing"


def test_model_salt_template_arguments_and_secret_each_separate_prompts() -> None:
    parts: list[tuple[bytes, list[object]]] = [
        (NO_SECRET, ["m", None, None, None]),
        (NO_SECRET, ["n", None, None, None]),
        (NO_SECRET, ["m", "s1", None, None]),
        (NO_SECRET, ["m", "s2", None, None]),
        (NO_SECRET, ["m", None, {"enable_thinking": False}, None]),
        (NO_SECRET, ["m", None, {"enable_thinking": True}, None]),
        (NO_SECRET, ["m", None, None, "s1"]),
        (b"a fleet's own", ["m", None, None, None]),
    ]
    roots = [root(secret, *values) for secret, values in parts]
    assert len(set(roots)) == len(parts)
    data = chat([SYSTEM, QUESTION]).data * 40
    chains = [chain(data, each) for each in roots]
    assert len({found[0][0] for found in chains}) == len({found[1] for found in chains}) == len(parts)


def test_the_order_of_template_arguments_does_not_matter() -> None:
    one, other = {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}
    assert root(b"s", "m", None, one) == root(b"s", "m", None, other)


def test_a_root_has_64_bits() -> None:
    roots = [root(b"s", i) for i in range(200)]
    assert 2**63 < max(roots) < 2**64
    assert min(roots) >= 0


@given(values=st.lists(ANY_JSON, min_size=1, max_size=4))
@settings(deadline=None, max_examples=60)
def test_anything_decoded_from_json_has_a_root(values: list[Any]) -> None:
    assert 0 <= root(b"s", *values) < 2**64


def test_the_order_of_keys_in_a_request_does_not_matter() -> None:
    message = {
        "role": "user",
        "content": [{"type": "text", "text": "See"}, image("https://a.example/1")],
        "name": "eve",
        "tool_call_id": "c1",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1, "b": 2}}, "id": "c1"}, {"x": 1, "y": 2}],
    }

    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(value[key]) for key in reversed(value)}
        return [turned(item) for item in value] if isinstance(value, list) else value

    assert list(turned(message)) != list(message)
    assert chat([turned(message)]) == chat([message])


def test_content_as_text_equals_the_same_text_in_a_part() -> None:
    assert said("Where?") == said([{"type": "text", "text": "Where?"}]) == said(["Where?"])


def test_parts_join_with_a_line_break_as_vllm_joins_them() -> None:
    assert said("Where\nis it?") == said([{"type": "text", "text": "Where"}, {"type": "text", "text": "is it?"}])


def test_null_content_equals_no_content_and_empty_content() -> None:
    assert said(None) == said("") == said([]) == chat([{"role": "user"}]).data


def test_images_differ_by_what_they_carry_and_equal_ones_do_not() -> None:
    one, other = image("https://a.example/1"), image("https://a.example/2")
    assert said([one]) == said([dict(one)])
    assert said([one]) != said([other])
    assert said(["See", one]) != said(["See"])
    inline = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    assert said([inline]) != said([{**inline, "input_audio": {"data": "UklGRh==", "format": "wav"}}])


def test_half_a_surrogate_pair_is_text_wherever_it_stands() -> None:
    half = "\ud83d"
    call = {"function": {"name": half, "arguments": {half: half}}}
    everywhere = [
        said(half),
        said([half]),
        said([{"type": "odd", "odd": half}]),
        said("", name=half),
        said("", tool_call_id=half),
        said("", tool_calls=[call]),
        completion(half).data,
    ]
    assert len(set(everywhere)) == len(everywhere) - 1  # As a text and as a text in a part it is the same.
    assert 0 <= root(b"s", half, half) < 2**64


def test_a_single_part_that_is_no_list_counts_as_a_list_of_it() -> None:
    assert said(image("u")) == said([image("u")])


@pytest.mark.parametrize(
    "changed",
    [
        {"role": "assistant"},
        {"content": "Where is my letter?"},
        {"name": "eve"},
        {"tool_call_id": "c1"},
        {"tool_calls": [{"function": {"name": "look", "arguments": "{}"}}]},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_every_field_that_a_template_renders_is_in_the_bytes(changed: dict[str, Any]) -> None:
    assert chat([QUESTION]).data != chat([{**QUESTION, **changed}]).data


def test_tool_calls_differ_by_name_and_by_arguments() -> None:
    calls: list[Any] = [
        [{"function": {"name": "look", "arguments": "{}"}}],
        [{"function": {"name": "hear", "arguments": "{}"}}],
        [{"function": {"name": "look", "arguments": '{"at": 1}'}}],
        [{"function": {"name": "look", "arguments": {"at": 1}}}],
        [{"function": {"name": "look", "arguments": "{}"}}] * 2,
        [{"custom": 1}],
        ["look"],
        "hear",
    ]
    assert len({said(None, tool_calls=each) for each in calls}) == len(calls)


def test_one_call_that_is_no_list_counts_as_a_list_of_it() -> None:
    call = {"function": {"name": "look", "arguments": "{}"}}
    assert said(None, tool_calls=call) == said(None, tool_calls=[call])


def test_conversations_share_their_head_and_not_their_end() -> None:
    tools = b'[{"type":"function"}]'
    one = chat([SYSTEM, QUESTION], tools).data
    other = chat([SYSTEM, {**QUESTION, "content": "Where is my money?"}], tools).data
    assert one != other
    head = b"\x1esystem\x1fYou are a clerk.\x1e" + tools + b"\x1euser\x1fWhere is my "
    assert one.startswith(head)
    assert other.startswith(head)


def test_tools_stand_where_the_template_renders_them() -> None:
    def places(messages: list[Any], tools_first: bool) -> list[bytes]:
        return [turn.split(b"\x1f")[0] for turn in chat(messages, b"TOOLS", tools_first).data.split(b"\x1e")[1:]]

    assert places([SYSTEM, QUESTION], False) == [b"system", b"TOOLS", b"user"]
    assert places([SYSTEM, QUESTION], True) == [b"TOOLS", b"system", b"user"]
    assert places([QUESTION, SYSTEM], False) == [b"TOOLS", b"user", b"system"]


@given(messages=st.lists(PLAIN_MESSAGE, min_size=1, max_size=4), reply=ANY_TEXT, tools=st.sampled_from([b"", b"[{}]"]))
@settings(deadline=None, max_examples=100)
def test_the_next_turn_begins_with_this_one_and_says_where_the_answer_is(
    messages: list[dict[str, str]], reply: str, tools: bytes
) -> None:
    before = chat(messages, tools)
    after = chat([*messages, {"role": "assistant", "content": reply}, QUESTION], tools)
    start, end = len(before.data), after.answers[len(before.data)]
    assert after.data.startswith(before.data)
    assert after.data[start:end] == b"\x1eassistant\x1f" + reply.encode("utf-8", "surrogatepass")
    assert after.answers == {**before.answers, start: end}


@given(messages=st.lists(PLAIN_MESSAGE, min_size=1, max_size=5), tools=st.sampled_from([b"", b"[{}]"]))
@settings(deadline=None, max_examples=60)
def test_every_answer_and_nothing_else_is_spanned(messages: list[dict[str, str]], tools: bytes) -> None:
    found = chat(messages, tools)
    replies = [message["content"] for message in messages if message["role"] == "assistant"]
    spans = [found.data[start:end] for start, end in found.answers.items()]
    assert spans == [b"\x1eassistant\x1f" + reply.encode("utf-8", "surrogatepass") for reply in replies]


@pytest.mark.parametrize(
    "messages", [None, [], {}, "hello", 7, [None], ["hello"], [[QUESTION]], [QUESTION, 7], {"role": "user"}], ids=repr
)
def test_what_is_no_list_of_messages_is_no_prompt(messages: Any) -> None:
    with pytest.raises(NoPrompt):
        chat(messages, b"[]")


@given(messages=ANY_JSON | st.lists(ODD_MESSAGE, max_size=3), tools=st.sampled_from([b"", b"[]"]), first=st.booleans())
@settings(deadline=None, max_examples=150)
def test_a_malformed_conversation_is_a_prompt_or_no_prompt_and_nothing_else(
    messages: Any, tools: bytes, first: bool
) -> None:
    try:
        found = chat(messages, tools, first)
    except NoPrompt:
        assert not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages)
    else:
        assert found.data.startswith(b"\x1e")
        assert all(0 <= start < end <= len(found.data) for start, end in found.answers.items())


@given(prompt=ANY_JSON | st.lists(st.integers(-5, 2**33), max_size=3))
@settings(deadline=None, max_examples=150)
def test_a_malformed_completion_is_a_prompt_or_no_prompt_and_nothing_else(prompt: Any) -> None:
    try:
        found = completion(prompt)
    except NoPrompt:
        assert not isinstance(prompt, str)
    else:
        assert found.answers == {}
        assert found.tokens is None or len(found.data) == 4 * found.tokens


def test_a_completion_is_its_text() -> None:
    assert completion("Grüße") == Prompt("Grüße".encode(), {}, None)
    assert completion("") == Prompt(b"", {}, None)


def test_of_several_prompts_the_first_counts() -> None:
    assert completion(["one", "two"]) == completion("one")
    assert completion([[1, 2], [3]]) == completion([1, 2])
    assert completion(["", "two"]) == completion("")


def test_token_ids_are_four_bytes_each_and_counted() -> None:
    assert completion([1, 2**32 - 1, 258]) == Prompt(b"\1\0\0\0\xff\xff\xff\xff\2\1\0\0", {}, 3)
    assert len(chain(completion([7] * 128).data, 0)[0]) == 1


@pytest.mark.parametrize(
    "prompt", [None, 7, 1.5, True, {}, [], [[]], [1, "two"], [1.0], [-1], [2**32], [None], [[1, "x"]], [{}]], ids=repr
)
def test_what_is_neither_text_nor_token_ids_is_no_prompt(prompt: Any) -> None:
    with pytest.raises(NoPrompt):
        completion(prompt)


def test_no_tokens_are_no_bytes() -> None:
    assert token_bytes([]) == b""


def test_no_prompt_is_a_value_error_so_that_a_caller_may_treat_it_as_one() -> None:
    assert issubclass(NoPrompt, ValueError)
