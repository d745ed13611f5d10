"""The demo's workload has the shape that it claims, and its hash proves that two arms got the same work."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from loadtests.workloads import ChatShape, Message, Session, Turn, Workload, chat_workload, pseudo_text

SMALL = Workload(
    (
        Session(
            "s1", 1.0, (Message("system", ("be ", "brief")),), (Turn(Message("user", ("hi",)), 5, 0.5),), remembers=True
        ),
    )
)


def openings(workload: Workload) -> list[str]:
    return [message.text for session in workload.sessions for message in session.opening]


def test_the_same_seed_gives_the_same_work() -> None:
    assert chat_workload(7) == chat_workload(7)
    assert chat_workload(7).sha256() == chat_workload(7).sha256()


def test_another_seed_gives_other_work() -> None:
    assert chat_workload(7).sha256() != chat_workload(8).sha256()


def test_a_seed_means_the_same_work_in_every_version() -> None:
    assert chat_workload(1).sha256() == "b1f1f2581770632be26cc7eb6162a64e4032bc8330706b7a2ce13e22effdc794"


def test_24_preambles_of_6000_tokens_are_shared_by_40_sessions() -> None:
    texts = openings(chat_workload(1))
    assert len(texts) == 40
    assert len(set(texts)) == 24
    assert {len(text) for text in texts} == {6_000 * 4}


@pytest.mark.parametrize("bytes_per_token", [3.125, 4.0, 4.6875])
def test_a_session_grows_by_at_most_1500_tokens(bytes_per_token: float) -> None:
    for session in chat_workload(3, ChatShape(bytes_per_token=bytes_per_token)).sessions:
        grown = sum(len(turn.question.text) / bytes_per_token + turn.max_tokens for turn in session.turns)
        assert 0 < grown <= 1_500


def test_which_preamble_a_session_has_is_skewed() -> None:
    most = [Counter(openings(chat_workload(seed))).most_common(1)[0][1] for seed in range(20)]
    assert sum(most) / len(most) > 2 * 40 / 24


def test_sessions_start_one_after_another() -> None:
    starts = [session.start_s for session in chat_workload(1).sessions]
    assert starts == sorted(set(starts))
    assert starts[-1] < ChatShape().stagger_s


def test_speed_shrinks_the_times_and_leaves_the_texts() -> None:
    fast = SMALL.at_speed(4)
    assert fast.sessions[0].start_s == 0.25
    assert fast.sessions[0].turns[0].think_s == 0.125
    assert fast.sessions[0].turns[0].question is SMALL.sessions[0].turns[0].question


def session(**changes: object) -> Workload:
    return Workload((replace(SMALL.sessions[0], **changes),))  # type: ignore[arg-type]


def turn(**changes: object) -> Workload:
    return session(turns=(replace(SMALL.sessions[0].turns[0], **changes),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        session(id="s2"),
        session(start_s=2.0),
        session(opening=()),
        session(opening=(Message("user", ("be ", "brief")),)),
        session(remembers=False),
        session(turns=()),
        turn(question=Message("user", ("ho",))),
        turn(max_tokens=6),
        turn(think_s=0.25),
        Workload(()),
    ],
)
def test_the_hash_covers_every_field(other: Workload) -> None:
    assert other.sha256() != SMALL.sha256()


def test_the_hash_does_not_see_how_a_text_is_cut_into_parts() -> None:
    assert session(opening=(Message("system", ("be brief",)),)).sha256() == SMALL.sha256()


@pytest.mark.parametrize("size", [0, 1, 4, 5, 17, 2_048])
def test_pseudo_text_has_exactly_the_size_asked_for(size: int) -> None:
    text = pseudo_text(random.Random(1), size)
    assert len(text.encode()) == size
    assert text.isascii()
