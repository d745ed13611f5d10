"""File and environment -> settings: what overrides what, whence a value is, and what the bounds are."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from router.diagnostics import ConfigError, Problem, Severity, Source
from router.document import MAX_DEPTH, parse
from router.loading import MAX_BYTES, inspect, load

VALID = 'replicas: [{id: r1, url: "http://127.0.0.1:8101"}]\n'

KUBERNETES = {
    "HOMING_PORT": "tcp://10.0.0.1:8000",
    "HOMING_SERVICE_HOST": "10.0.0.1",
    "HOMING_SERVICE_PORT": "8000",
    "HOMING_PORT_8000_TCP": "tcp://10.0.0.1:8000",
    "HOMING_PORT_8000_TCP_PROTO": "tcp",
    "HOMING_PORT_8000_TCP_ADDR": "10.0.0.1",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "router.yaml"
    path.write_text(VALID)
    return path


def problems(file: Path, environ: dict[str, str]) -> list[Problem]:
    return inspect(file, environ)[1]


# The environment.


def test_variables_override_the_file_and_are_typed_as_its_scalars_are(file: Path) -> None:
    file.write_text(VALID + "routing: {prefix_block: 256, policy: random}\n")
    config = load(
        file,
        {
            "HOMING__ROUTING__PREFIX_BLOCK": "1024",
            "HOMING__ROUTING__HOME_SLACK": "50ms",
            "HOMING__ROUTING__SPILL__MAX_KV_USAGE": "null",
            "HOMING__LOG__REQUESTS": "true",
            "HOMING__LIMITS__BODY": "8MiB",
            "HOMING__TIMEOUTS__IDLE": "null",
            "HOMING__TIMEOUTS__REQUEST": "4h",
            "HOMING__PROXY__ALLOW_PATHS": "[/sleep, /wake_up]",
        },
    ).config
    assert (config.routing.prefix_block, config.routing.policy, config.routing.home_slack) == (1024, "random", 0.05)
    assert config.routing.spill.max_kv_usage is None
    assert config.log.requests is True
    assert config.limits.body == 8 << 20
    assert (config.timeouts.idle, config.timeouts.request) == (None, 14_400.0)
    assert config.proxy.allow_paths == ["/sleep", "/wake_up"]


def test_lists_and_named_sections_are_set_whole(file: Path) -> None:
    environ = {
        "HOMING__REPLICAS": '[{id: a, url: "http://10.0.0.1:1"}, {id: b, url: "http://10.0.0.2:1"}]',
        "HOMING__MODELS": "{meta/llama: {template_order: tools_first}}",
    }
    loaded = load(file, environ)
    assert [replica.id for replica in loaded.config.replicas] == ["a", "b"]
    assert loaded.config.models["meta/llama"].template_order == "tools_first"
    assert loaded.origin(("replicas", 1, "id")) == "env"


def test_a_shorthand_in_the_file_and_its_siblings_in_the_environment_go_together(file: Path) -> None:
    file.write_text(VALID + "admin: 127.0.0.1:9200\n")
    loaded = load(file, {"HOMING__ADMIN__TOKEN_FILE": "token"})
    assert (str(loaded.config.admin.listen), loaded.config.admin.token_file) == ("127.0.0.1:9200", "token")
    assert (loaded.origin(("admin", "listen")), loaded.origin(("admin", "token_file"))) == (f"{file}:2", "env")
    loaded = load(file, {"HOMING__ADMIN": "127.0.0.1:9300"})
    assert str(loaded.config.admin.listen) == "127.0.0.1:9300"
    assert loaded.origin(("admin", "listen")) == "env"


def test_what_kubernetes_injects_changes_nothing(file: Path) -> None:
    plain, injected = load(file, {}), load(file, KUBERNETES)
    assert injected.config == plain.config
    assert injected.rows() == plain.rows()


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("HOMING__ROUTING__PREFIX_BLOK", "HOMING__ROUTING__PREFIX_BLOCK"),
        ("HOMING__HEALT__TIMEOUT", "HOMING__HEALTH__TIMEOUT"),
        ("HOMING__routing__policy", "HOMING__ROUTING__POLICY"),
        ("HOMING__REPLICAS__0__URL", "HOMING__REPLICAS"),
        ("HOMING__MODELS__LLAMA__TEMPLATE_ORDER", "HOMING__MODELS"),
        ("HOMING__", None),
        ("HOMING__NAMESPACE", None),
    ],
)
def test_a_variable_that_no_setting_belongs_to_is_an_error(name: str, suggestion: str | None, file: Path) -> None:
    (problem,) = problems(file, {name: "1"})
    assert (problem.code, problem.file, problem.suggestion) == ("H119", "environment", suggestion)
    assert problem.span is not None
    assert problem.span.text == name


@pytest.mark.parametrize(
    ("name", "value", "code", "token"),
    [
        ("HOMING__DRAIN__TIMEOUT", "30", "H105", "30"),
        ("HOMING__ROUTING__POLICY", "fastest", "H107", "fastest"),
        ("HOMING__HEALTH__FAILURES", '"3"', "H125", '"3"'),
        ("HOMING__LOG__REQUESTS", "on", "H116", "on"),
        ("HOMING__ROUTING", "3", "H104", "3"),
        ("HOMING__ROUTING", "{polcy: random}", "H103", "polcy"),
        ("HOMING__REPLICAS", "[{id: r1", "H102", "1"),
        ("HOMING__MODELS", "{m:  {order:  1}}", "H103", "order"),
        ("HOMING__LISTEN", "8080", "H111", "8080"),
    ],
)
def test_a_wrong_value_is_told_at_its_place_in_the_variable(
    name: str, value: str, code: str, token: str, file: Path
) -> None:
    problem = problems(file, {"HOMING__ADMIN__LISTEN": "127.0.0.1:9100", name: value})[0]
    assert problem.code == code
    assert problem.span is not None
    line = problem.span.source.lines[problem.span.line - 1]
    assert line == f"{name}={value}"
    assert (problem.file, problem.span.text) == ("environment", token)


def test_a_value_of_several_lines_is_shown_as_one_and_its_tokens_are_found_in_it(file: Path) -> None:
    (problem,) = problems(file, {"HOMING__REPLICAS": "- id: r1\n  url: http://10.0.0.1:1\n- id: r2\n  uri: x"})[-1:]
    assert problem.span is not None
    assert problem.span.text == "uri"
    assert problem.span.source.lines == ("HOMING__REPLICAS=- id: r1   url: http://10.0.0.1:1 - id: r2   uri: x",)


def test_the_last_word_of_a_bad_file_is_not_overruled_by_a_variable(file: Path) -> None:
    file.write_text(VALID + "routing: 3\n")
    assert [problem.code for problem in problems(file, {"HOMING__ROUTING__POLICY": "random"})] == ["H104"]


# The file.


def test_empty_sections_have_their_defaults(file: Path) -> None:
    file.write_text(VALID + "routing:\nmodels:\n  m:\nhealth:\n  # failures: 3\nadmin:\n")
    assert load(file, {}).config.model_copy(update={"models": {}}) == load(_least(file), {}).config


def _least(file: Path) -> Path:
    other = file.with_name("least.yaml")
    other.write_text(VALID)
    return other


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e3", 1000.0),
        ("1_000", 1000),
        ("007", 7),
        ("-5", -5),
        (".5", 0.5),
        ("True", True),
        ("~", None),
        ("22:30", "22:30"),
        ("0x10", "0x10"),
        ("2024-01-01", "2024-01-01"),
        ("1_0", "1_0"),
        ("'5'", "5"),
        ("9" * 40, float("9" * 40)),
        ("\uff13", "\uff13"),
    ],
)
def test_scalars_are_read_by_the_core_rules(text: str, value: object) -> None:
    document = parse(Source.of("f", f"key: {text}"))
    assert isinstance(document.values, dict)
    assert document.values["key"] == value
    assert type(document.values["key"]) is type(value)


def test_merge_keys_fill_in_what_a_mapping_does_not_say_itself() -> None:
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\nc: {<<: [*a, {z: 4}]}\n"
    document = parse(Source.of("f", text))
    assert document.values == {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}, "c": {"x": 1, "y": 2, "z": 4}}


def test_depth_is_bounded_at_its_bound() -> None:
    deep = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert parse(Source.of("f", f"a: {deep}")).problems == []
    assert [problem.code for problem in parse(Source.of("f", f"a: [{deep}]")).problems] == ["H122"]


def test_a_file_is_read_up_to_its_bound_and_not_beyond(file: Path) -> None:
    file.write_text(VALID + "#" * (MAX_BYTES - len(VALID)))
    assert problems(file, {}) == []
    file.write_text(VALID + "#" * (MAX_BYTES - len(VALID) + 1))
    assert [problem.code for problem in problems(file, {})] == ["H101"]
    assert [problem.code for problem in problems(Path("/dev/zero"), {})] == ["H101"]


def test_load_raises_with_the_errors_and_without_the_warnings(file: Path) -> None:
    file.write_text(VALID + "admin: {token_file: hf_AbCdEfGhIjKlMnOp}\nrouting: {polcy: random}\nhealth: 3\n")
    with pytest.raises(ConfigError) as raised:
        load(file, {})
    assert [problem.code for problem in raised.value.problems] == ["H103", "H104"]


# What the settings become.


def test_rows_mark_what_is_not_the_default_and_is_no_replicas(file: Path) -> None:
    file.write_text(
        VALID + "routing: {prefix_block: 512, home_slack: 250ms}\nmodels: {m: {template_order: tools_first}}\n"
    )
    changed = [row for row in load(file, {"HOMING__HEALTH__FAILURES": "3"}).rows() if row.changed]
    assert [(row.name, row.value, row.origin) for row in changed] == [
        ("models.m.template_order", "tools_first", f"{file}:3"),
        ("routing.home_slack", "250ms", f"{file}:2"),
        ("health.failures", "3", "env"),
    ]


def test_secrets_are_read_from_files_beside_the_configuration(file: Path) -> None:
    (file.parent / "token").write_text("t0ken\n")
    (file.parent / "key").write_text("  k3y  ")
    file.write_text(
        "admin: {token_file: token}\n"
        f'replicas:\n  - {{id: a, url: "http://10.0.0.1:1", api_key_file: "{file.parent}/key"}}\n'
        '  - {id: b, url: "http://10.0.0.2:1"}\n'
    )
    secrets = load(file, {}).secrets()
    assert (secrets.admin_token, secrets.api_keys) == ("t0ken", {"a": "k3y"})


def test_settings_that_contradict_each_other_are_told_by_check_and_by_serve_where_somebody_wrote_them(
    file: Path,
) -> None:
    file.write_text(VALID + "drain: {timeout: 10s}\ntimeouts: {request: 1m}\n")
    assert inspect(file, {})[1] == []
    loaded, problems = inspect(file, {"HOMING__DRAIN__ACCEPT": "11s"})
    assert loaded is not None
    for told in (problems, loaded.examined()[1]):
        assert [(problem.code, problem.path, problem.severity) for problem in told] == [
            ("H132", ("drain", "accept"), Severity.WARNING)
        ]


def test_a_name_that_no_file_can_have_is_told_like_one_that_is_not_there(file: Path) -> None:
    file.write_text('admin: {token_file: "a\\0b"}\n' + VALID)
    [problem] = load(file, {}).files(datetime.now(UTC))[1]
    assert (problem.code, "cannot be read" in problem.message) == ("H127", True)


@pytest.mark.parametrize("content", [None, b"", b" \n", b"two\nlines", "schl\u00fcssel".encode(), b"\xff\xfe"])
def test_a_secrets_file_that_cannot_be_used_is_told_where_it_is_named(content: bytes | None, file: Path) -> None:
    file.write_text("admin: {token_file: token}\n" + VALID)
    if content is not None:
        (file.parent / "token").write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        load(file, {}).secrets()
    (problem,) = raised.value.problems
    assert problem.code == "H127"
    assert problem.span is not None
    assert (problem.span.line, problem.span.text) == (1, "token")
    assert str(file.parent / "token") in problem.message
    assert "two" not in problem.message


SHADOWS = 'replicas: [{id: r1, url: "http://127.0.0.1:8101"}]\n'


def test_a_shadow_goes_by_its_policy_with_the_limits_that_are_in_effect(file: Path) -> None:
    file.write_text(SHADOWS + "routing: {max_concurrency: 7}\nshadow: {policy: round_robin}\n")
    loaded = load(file)
    shadow = loaded.secrets().shadow
    assert shadow == loaded.config.routing.model_copy(update={"policy": "round_robin"})
    assert loaded.config.shadow.followed == 0.1
    file.write_text(SHADOWS + "shadow: {sample: 1.0}\n")
    assert (load(file).secrets().shadow, load(file).config.shadow.followed) == (None, 0.0)


def test_a_shadow_goes_by_another_file_and_variables_do_not_count_there(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOMING__ROUTING__POLICY", "random")
    file.with_name("next.yaml").write_text(SHADOWS + "routing: {spill: {max_queued_requests: 3}}\n")
    file.write_text(SHADOWS + "shadow: {file: next.yaml, sample: 0.5}\n")
    loaded = load(file)
    shadow = loaded.secrets().shadow
    assert shadow is not None
    assert (shadow.policy, shadow.spill.max_queued_requests) == ("prefix_affinity", 3)
    assert (loaded.config.routing.policy, loaded.config.shadow.followed) == ("random", 0.5)


def test_a_shadow_with_another_block_cannot_be_compared(file: Path) -> None:
    file.with_name("next.yaml").write_text(SHADOWS + "routing: {prefix_block: 1024}\n")
    file.write_text(SHADOWS + "shadow: {file: next.yaml}\n")
    with pytest.raises(ConfigError) as error:
        load(file).secrets()
    [problem] = error.value.problems
    assert problem.code == "H150"
    assert "has a `prefix_block` of 1024, and this one 512" in problem.message


def test_a_default_that_fails_points_to_the_file_and_no_line(file: Path) -> None:
    problem = load(file, {}).problem("H128", ("listen",), "cannot listen")
    assert (problem.file, problem.span) == (str(file), None)
