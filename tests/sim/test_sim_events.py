"""Events as one writes them: what each becomes, and that every mistake is answered with what to write instead."""

import pytest

from loadtests.sim_events import FORMS, EventError, read
from loadtests.simulation import Change, Join, Leave, Restart, RouterRestart, Slow


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("join@60", [Join(60.0, "r4")]),
        (" join  x0.5 @ 60 ", [Join(60.0, "r4", 0.5)]),
        ("leave 2@1.5", [Leave(1.5, "r2")]),
        ("leave r2@1.5", [Leave(1.5, "r2")]),
        ("restart 2@60", [Restart(60.0, "r2", 30.0)]),
        ("restart 2 for 5@60", [Restart(60.0, "r2", 5.0)]),
        ("restart r2 for 5 drained@60", [Restart(60.0, "r2", 5.0, drains=True)]),
        ("restart all for 9@60", [Restart(60.0, name, 9.0) for name in ("r1", "r2", "r3")]),
        ("slow 3 x.25@0", [Slow(0.0, "r3", 0.25)]),
        ("router 2@60", [RouterRestart(60.0, 2)]),
        ("router 1 cold@60", [RouterRestart(60.0, 1, snapshot=False)]),
    ],
)
def test_each_kind_of_event_is_read(text: str, changes: list[Change]) -> None:
    events = read([text], 3, 2)
    assert events.changes == changes
    assert events.name == text


def test_the_example_of_each_form_is_one() -> None:
    for kind, form in FORMS.items():
        assert type(read([form.example], 3, 1).changes[0]).__name__.lower().removesuffix("restart") in (kind, "")


def test_events_come_in_order_of_time_and_newcomers_count_on() -> None:
    events = read(["leave 5@9", "join@3", "join@1", "leave 4@5"], 3, 1)
    assert events.changes == [Join(1.0, "r4"), Join(3.0, "r5"), Leave(5.0, "r4"), Leave(9.0, "r5")]
    assert [text for text, _ in events.told] == ["join@1", "join@3", "leave 4@5", "leave 5@9"]


def test_without_events_nothing_changes() -> None:
    assert (read([], 3, 1).changes, read([], 3, 1).name) == ([], "-")


@pytest.mark.parametrize(
    ("texts", "remedy"),
    [
        (["join"], "say at which second: join@60"),
        (["join@soon"], "'soon' is no number of seconds: join@60"),
        (["jion@60"], "did you mean join? For example join x0.5@60"),
        (["reboot 2@60"], "one of join, leave, restart, slow, router."),
        (["leave@60"], "write it like leave 2@60"),
        (["slow 2@60"], "write it like slow 2 x0.5@60"),
        (["slow 2 x0@60"], "a speed is above 0: slow 2 x0.5@60"),
        (["restart 2 drained for 5@60"], "write it like restart 2 for 30@60"),
        (["leave 9@60"], "no replica r9 at 60 s: there are r1, r2"),
        (["leave 3@60", "join@61"], "no replica r3 at 60 s"),
        (["leave 1@10", "slow 1 x2@20"], "no replica r1 at 20 s: there are r2"),
        (["leave 1@10", "leave 2@20"], "it is the last one"),
        (["restart 1 for 5@10", "slow 1 x2@14"], "r1 is back at 15 s only: write @15 or later"),
        (["restart 1 drained@10", "slow 1 x2@90"], "r1 drains and restarts before"),
        (["router 3@60"], "routers count from 1 to 2"),
    ],
)
def test_a_mistake_is_answered_with_what_to_write(texts: list[str], remedy: str) -> None:
    with pytest.raises(EventError) as raised:
        read(texts, 2, 2)
    assert remedy in str(raised.value)
    assert any(repr(text) in str(raised.value) for text in texts)


def test_all_leaves_out_who_is_down() -> None:
    events = read(["restart 1 for 60@10", "restart all for 5@20"], 2, 1)
    assert events.changes == [Restart(10.0, "r1", 60.0), Restart(20.0, "r2", 5.0)]
