"""The stand-in tokenizer, the chat template and the request parser: the properties that routing depends on."""

import json
from itertools import count as counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica import tokens
from replica.errors import BadRequestError
from replica.openai_requests import Model, parse_body, parse_chat, parse_completion, parse_embedding, pieces, plan
from replica.template import render_chat
from replica.tokens import Tokenizer

TOKENIZER = Tokenizer("sim")
MODEL = Model("sim", ("sim-adapter",), TOKENIZER, block_size=16, max_model_len=10_000, seed=0)
TEXT = st.text('abc \n"é漢🙂', max_size=400)
NASTY = st.text('ab"\\\n\0\ud800é🙂', max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | NASTY,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NASTY, inner, max_size=4),
    max_leaves=12,
)
FIELDS = (
    "messages", "prompt", "input", "model", "max_tokens", "max_completion_tokens", "min_tokens", "n", "tools",
    "cache_salt", "stream", "stream_options", "ignore_eos", "chat_template_kwargs", "reasoning_effort",
)  # fmt: skip
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]) | JSON, "content": JSON},
    optional={"name": JSON, "tool_calls": JSON, "tool_call_id": JSON},
)


@pytest.mark.parametrize("model", ["sim", "llama", "qwen", "mistral", "a", "b"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_tokens_are_between_3_1_and_4_7_bytes_long_on_the_mean(model: str, seed: int) -> None:
    tokenizer = Tokenizer(model, seed)
    assert 3.1 <= tokenizer.bytes_per_token <= 4.7
    text = "x" * 100_000
    assert len(text) / tokens.count(tokenizer.encode(text)) == pytest.approx(tokenizer.bytes_per_token, rel=1e-3)


def test_models_and_seeds_tokenize_differently_and_repeatably() -> None:
    made = {(model, seed): Tokenizer(model, seed).encode("abcdefgh" * 50) for model in "abc" for seed in (0, 1)}
    assert len(set(made.values())) == 6
    assert Tokenizer("a", 1).encode("abcdefgh" * 50) == made["a", 1]


@given(TEXT)
def test_text_survives_a_round_trip(text: str) -> None:
    assert tokens.decode(TOKENIZER.encode(text)) == text


@given(TEXT, TEXT, TEXT)
def test_a_common_prefix_gives_common_tokens_but_for_the_last(head: str, left: str, right: str) -> None:
    whole = tokens.count(TOKENIZER.encode(head))
    kept = max(0, whole - 1) * tokens.TOKEN_BYTES
    assert TOKENIZER.encode(head + left)[:kept] == TOKENIZER.encode(head + right)[:kept]


@given(st.integers(0, 100))
def test_the_bytes_of_a_number_of_tokens_make_that_many_tokens(count: int) -> None:
    assert tokens.count(TOKENIZER.encode("x" * TOKENIZER.text_bytes(count))) == count


def test_a_lone_surrogate_and_a_nul_are_tokenized_like_any_text() -> None:
    assert tokens.count(TOKENIZER.encode("\ud800\0")) >= 1
    assert isinstance(tokens.decode(TOKENIZER.encode("\ud800\0")), str)


def test_a_chain_commits_to_everything_before_and_to_its_root() -> None:
    packed = TOKENIZER.encode("the quick brown fox " * 40)
    chain = tokens.chain(packed, 16, tokens.root("sim", None, None))
    assert len(chain) == tokens.count(packed) // 16
    changed = tokens.chain(b"\1" + packed[1:], 16, tokens.root("sim", None, None))
    salted = tokens.chain(packed, 16, tokens.root("sim", None, "tenant"))
    adapted = tokens.chain(packed, 16, tokens.root("sim", "tenant", None))
    assert len({*chain, *changed, *salted, *adapted}) == 4 * len(chain)


def test_token_ids_and_their_text_are_the_same_prompt() -> None:
    text = "the quick brown fox " * 40
    ids = tokens.unpack(TOKENIZER.encode(text))
    by_text = plan(parse_completion({"prompt": text}, MODEL), MODEL, map(str, counter()).__next__)
    by_ids = plan(parse_completion({"prompt": ids}, MODEL), MODEL, map(str, counter()).__next__)
    assert by_text == by_ids


@pytest.mark.parametrize("ids", [[-1], [2**64], ["x"], [1.5], [None]])
def test_what_is_no_token_id_is_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="not a token id"):
        tokens.pack(ids)


def chat(*contents: str, **fields: object) -> dict[str, object]:
    roles = ("system", "user", "assistant", "user")
    return {
        "messages": [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)],
        **fields,
    }


def test_an_answer_sent_back_continues_the_tokens_of_the_prompt_that_it_answered() -> None:
    first = chat("be brief", "tell me something long " * 20)
    ((work, answer),) = plan(parse_chat(first, MODEL), MODEL, lambda: "first")
    second = chat("be brief", "tell me something long " * 20, answer.text, "go on")
    ((following, _),) = plan(parse_chat(second, MODEL), MODEL, lambda: "second")
    whole = (work.prompt_tokens + work.output_tokens) // 16
    assert whole > work.prompt_tokens // 16
    assert list(following.names[:whole]) == list(work.names[:whole])


def test_an_answer_is_made_of_exactly_its_tokens() -> None:
    ((work, answer),) = plan(parse_chat(chat("a", "b", max_tokens=33, ignore_eos=True), MODEL), MODEL, lambda: "x")
    texts = pieces(answer, MODEL, 0, 33)
    assert work.output_tokens == answer.tokens == len(texts) == 33
    assert "".join(texts) == answer.text
    assert answer.reason == "length"


def test_an_answer_depends_on_prompt_and_choice_alone() -> None:
    def answers(**fields: object) -> list[str]:
        generation = parse_chat(chat("a", "b", **fields), MODEL)
        return [answer.text for _, answer in plan(generation, MODEL, map(str, counter()).__next__)]

    assert answers(n=3) == answers(n=3, stream=True)
    assert len(set(answers(n=3))) == 3
    assert answers(n=3)[:1] == answers()
    assert answers(max_tokens=9)[0] == answers()[0][: len(answers(max_tokens=9)[0])]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (chat("a" * 500, "b"), chat("a" * 500, "b", chat_template_kwargs={"thinking": True})),
        (chat("a" * 500, "b"), chat("a" * 500, "b", reasoning_effort="low")),
        (chat("a" * 500, "b"), chat("a" * 500, "b", cache_salt="tenant")),
        (chat("a" * 500, "b"), chat("a" * 500, "b", model="sim-adapter")),
    ],
)
def test_other_arguments_share_no_block(left: dict[str, object], right: dict[str, object]) -> None:
    ((one, _),) = plan(parse_chat(left, MODEL), MODEL, lambda: "left")
    ((two, _),) = plan(parse_chat(right, MODEL), MODEL, lambda: "right")
    assert not set(one.names) & set(two.names)


def test_tools_come_after_the_system_text() -> None:
    plain = render_chat(chat("s" * 200, "question"), TOKENIZER)
    tooled = render_chat(chat("s" * 200, "question", tools=[{"type": "function"}]), TOKENIZER)
    system = render_chat(chat("s" * 200), TOKENIZER)
    opening = len(render_chat({"messages": [{"role": "system", "content": None}]}, TOKENIZER))
    common = len(system) - opening
    assert tooled[:common] == plain[:common]
    assert len(tooled) > len(plain)


def test_text_in_parts_is_the_same_prompt_as_the_text_itself() -> None:
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]}
    assert render_chat(parts, TOKENIZER) == render_chat({"messages": [{"role": "user", "content": "hello"}]}, TOKENIZER)


def test_two_images_are_two_prompts_of_equal_length() -> None:
    def picture(url: str) -> bytes:
        content = [{"type": "image_url", "image_url": {"url": url}}]
        return render_chat({"messages": [{"role": "user", "content": content}]}, TOKENIZER)

    assert picture("a") != picture("b")
    assert len(picture("a")) == len(picture("b")) > 144 * tokens.TOKEN_BYTES


@given(st.binary(max_size=40) | st.just(b"[" * 100_000) | st.just(b"9" * 5_000))
def test_any_body_is_an_object_or_a_bad_request(raw: bytes) -> None:
    try:
        body = parse_body(raw)
    except BadRequestError:
        return
    assert isinstance(body, dict)


@given(st.dictionaries(st.sampled_from(FIELDS), JSON), st.none() | st.lists(MESSAGE, max_size=3))
def test_any_object_is_a_request_or_a_bad_request(body: dict[str, object], messages: list[object] | None) -> None:
    body = json.loads(json.dumps(body | ({} if messages is None else {"messages": messages})))
    for parse in (parse_chat, parse_completion, parse_embedding):
        try:
            generation = parse(body, MODEL)
        except BadRequestError:
            continue
        assert plan(generation, MODEL, map(str, counter()).__next__)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (chat("a", "b", max_tokens=0), "max_tokens"),
        (chat("a", "b", max_completion_tokens=True), "max_completion_tokens"),
        (chat("a", "b", n="2"), "n"),
        (chat("a", "b", n=3_000), "n"),
        (chat("a", "b", max_tokens=9_999), "input_tokens"),
        (chat("x" * 50_000), "input_tokens"),
        (chat("a", "b", tools={}), "tools"),
        (chat("a", "b", cache_salt=""), "cache_salt"),
        (chat("a", "b", model="other"), "model"),
        (chat("a", "b", model=3), "model"),
        ({"messages": "hello"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "no role"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    ],
)
def test_what_vllm_refuses_is_refused_with_the_field_at_fault(body: dict[str, object], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse_chat(body, MODEL)
    assert caught.value.param == param
