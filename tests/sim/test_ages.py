"""What old news costs, in simulated time."""

import pytest
from typer import Typer
from typer.testing import CliRunner

from loadtests.ages import GOALS, SHARES, main, missed, plan, rows
from loadtests.table_kinds import kinds

GOOD = {(traffic, age): [1.0, 1.1] for traffic in SHARES for age in GOALS}


def test_no_news_costs_more_than_fresh_news() -> None:
    [ladder] = [kind for kind in kinds({}) if kind.name == "ladder"]
    found = {(traffic, age): values for traffic, age, values, _ in rows(ladder, 300, 12.0, 1)}
    assert found.pop(("one router", "")) == [1.0]
    assert found.keys() == GOOD.keys()
    assert found["even", "dead"][0] > found["even", "0.05 s"][0]


def test_age_is_how_long_news_is_held_back() -> None:
    assert plan("0.5 s", (1.0,)).gossip.every_s == 0.5
    assert plan("dead", (1.0,)).gossip.dead


def test_a_seed_above_its_goal_and_old_news_worse_than_none_are_missed() -> None:
    assert missed(GOOD) == []
    assert missed(GOOD | {("even", "0.5 s"): [1.1, 1.36]}) == ["even, 0.5 s: 1.36 is more than 1.35"]
    assert missed(GOOD | {("even", "2 s"): [1.2, 1.2]}) == ["even: news 2 s old is worse than none"]


@pytest.mark.parametrize("words", [[], ["--only", "chats"]])
def test_traffic_that_is_not_there_is_named(words: list[str]) -> None:
    app = Typer()
    app.command()(main)
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 2
    assert "there are ladder" in " ".join(said.output.split())
