"""What explains a decision: the same answer as the route's, with all that it was made of, and nothing changed by it."""

from random import Random

from router.core.baselines import RoundRobin
from router.core.fleet import NOBODY_READY, Fleet, FleetSettings
from router.core.policy import PrefixAffinity
from router.core.recent import Key
from router.core.types import Ask, Limit, Reason, Refusal, RefusalCause, Route, State, Wait
from tests.core.worlds import MODEL, answered, ask, fleet_of, leased, routed

RNG = Random(0)
PROMPT = ask(("a", 8))


def test_an_explanation_decides_as_the_route_does() -> None:
    fleet = fleet_of(4)
    for who in range(30):
        answered(fleet, ask((f"prompt {who}", 4)))
    for who in range(40):
        asked = ask((f"prompt {who}", 4), ("more", 2))
        assert fleet.explain(asked, 1.0, RNG).decision == fleet.route(asked, 1.0, RNG)


def test_an_explanation_tells_what_the_decision_was_made_of() -> None:
    fleet = fleet_of(3)
    route = routed(fleet, PROMPT)
    answered(fleet, PROMPT)
    fleet.mark("r1" if route.replica == "r0" else "r0", State.DOWN, "test", 0.0)
    asked = ask(("a", 8), ("b", 2))
    explanation = fleet.explain(asked, 1.0, RNG)
    assert (explanation.ask, explanation.tokens) == (asked, 1280)
    assert explanation.key == Key(asked.chain[0], 1)
    assert explanation.order[0] == route.replica
    assert [each.replica for each in explanation.candidates] == ["r0", "r1", "r2"]
    holder = {each.replica: each for each in explanation.candidates}[route.replica]
    assert (holder.state, holder.cut, holder.cached) == (State.READY, None, 1024)
    assert holder.reading is not None
    assert (holder.reading.depth, holder.reading.uncached) == (8, 256.0)
    assert holder.lines is not None
    assert len(holder.lines) == 5
    assert explanation.decision == Route(route.replica, Reason.HOLDER, 1280, 1024, 1024)


def test_the_lines_of_an_explanation_are_the_scores_that_the_policy_compared() -> None:
    fleet = fleet_of(3)
    leased(fleet, ask(("load", 40)))
    explanation = fleet.explain(PROMPT, 0.0, RNG)
    scores = {each.replica: sum(each.lines) for each in explanation.candidates if each.lines}
    assert len(scores) == 3
    assert isinstance(explanation.decision, Route)
    assert scores[explanation.decision.replica] <= min(scores.values()) + 0.1


def test_a_replica_that_was_not_considered_has_a_state_and_no_reading() -> None:
    fleet = fleet_of(3)
    fleet.mark("r0", State.DOWN, "test", 0.0)
    fleet.full("r1", 9.0)
    down, full, ready = fleet.explain(PROMPT, 1.0, RNG).candidates
    assert (down.state, down.cut, down.reading, down.lines, down.cached) == (State.DOWN, None, None, None, 0)
    assert (full.state, full.cut, full.reading, full.lines) == (State.FULL, Limit.FULL, None, None)
    assert ready.reading is not None
    assert fleet.explain(PROMPT, 1.0, RNG).decision == fleet.route(PROMPT, 1.0, RNG)


def test_a_replica_that_a_limit_cut_keeps_its_reading() -> None:
    fleet = fleet_of(2)
    busy = routed(fleet, PROMPT).replica
    for _ in range(32):
        fleet.lease(routed(fleet, PROMPT)._replace(replica=busy), PROMPT, 0.0)
    explained = {each.replica: each for each in fleet.explain(PROMPT, 0.0, RNG).candidates}
    assert explained[busy].cut is Limit.MAX_QUEUED_REQUESTS
    reading = explained[busy].reading
    assert reading is not None
    assert reading.queued == 32


def test_an_explanation_changes_nothing_not_even_a_turn() -> None:
    fleet = fleet_of(3, RoundRobin())
    for turn in range(4):
        for _ in range(5):
            assert fleet.explain(PROMPT, 0.0, RNG).decision == Route(f"r{turn % 3}", Reason.POLICY, 1024, 0, 0)
        assert routed(fleet, PROMPT).replica == f"r{turn % 3}"
    assert fleet.residency.held("r0") == 0


def test_a_policy_that_does_not_score_has_no_lines() -> None:
    fleet = fleet_of(2, RoundRobin())
    assert [each.lines for each in fleet.explain(PROMPT, 0.0, RNG).candidates] == [None, None]
    assert all(each.reading for each in fleet.explain(PROMPT, 0.0, RNG).candidates)


def test_an_unknown_model_is_explained_by_its_refusal() -> None:
    explanation = fleet_of(2).explain(PROMPT._replace(model="x"), 0.0, RNG)
    assert explanation.decision == Refusal(RefusalCause.UNKNOWN_MODEL, None)
    assert (explanation.tokens, explanation.candidates, explanation.order) == (0, (), ())


def test_a_fleet_of_nobody_is_explained_by_its_emptiness() -> None:
    explanation = Fleet(PrefixAffinity()).explain(Ask(None), 0.0, RNG)
    assert explanation.decision == NOBODY_READY
    assert (tuple(explanation.candidates), tuple(explanation.order)) == ((), ())


def test_nobody_ready_is_explained_by_the_states() -> None:
    fleet = fleet_of(2)
    for replica in ("r0", "r1"):
        fleet.mark(replica, State.DRAINING, "test", 0.0)
    explanation = fleet.explain(PROMPT, 0.0, RNG)
    assert explanation.decision == NOBODY_READY == fleet.route(PROMPT, 0.0, RNG)
    assert [each.state for each in explanation.candidates] == [State.DRAINING] * 2
    assert sorted(explanation.order) == ["r0", "r1"]


def test_a_wait_is_explained_by_the_cuts() -> None:
    fleet = fleet_of(2, settings=FleetSettings(max_concurrency=1))
    leased(fleet, PROMPT)
    leased(fleet, ask(("b", 1)))
    explanation = fleet.explain(PROMPT, 1.0, RNG)
    cut = {"r0": Limit.MAX_CONCURRENCY, "r1": Limit.MAX_CONCURRENCY}
    assert explanation.decision == Wait(Limit.MAX_CONCURRENCY, 1.0, cut) == fleet.route(PROMPT, 1.0, RNG)
    assert [each.cut for each in explanation.candidates] == [Limit.MAX_CONCURRENCY] * 2


def test_an_ask_for_one_replica_is_explained_by_that_one() -> None:
    explained = fleet_of(3, PrefixAffinity()).explain(Ask(MODEL, only="r1"), 0.0, RNG).candidates
    assert [each.reading is not None for each in explained] == [False, True, False]
