"""The shadow: both sides are held against one model, the sample is one of families, and nothing real is touched."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from router.core.baselines import LeastRequests, RoundRobin
from router.core.fleet import Fleet, FleetSettings
from router.core.lease import Lease
from router.core.member import ReplicaSpec
from router.core.policy import Limits, PrefixAffinity
from router.core.ring import Ring
from router.core.shadow import Counts, Key, Shadow, drawn, trusted
from router.core.types import Ask, Candidate, Outcome, Policy, Reason, Rng, State, Usage, View
from tests.core.worlds import MODEL, TOKENS_PER_BLOCK, ask, fleet_of, leased

WORKER = "w"


class First(RoundRobin):
    """All to one."""

    def pick(self, ask: Ask, view: View, now: float, rng: Rng) -> Candidate:
        return Candidate(view.replicas[0].id, Reason.POLICY)


class Stage:
    """A live fleet, and a shadow that is told of whatever happens on it."""

    def __init__(self, live: Policy, shadow: Policy, replicas: int = 4, **settings: object) -> None:
        self.fleet = fleet_of(replicas, live)
        self.counts = Counts("x")
        told = replace(FleetSettings(), **settings)  # type: ignore[arg-type]
        self.shadow = Shadow(shadow, told, self.counts, Random(1))
        self.now = 0.0
        self.serial = 0
        self.predicted = 0
        self.align()

    def align(self) -> None:
        self.shadow.align(self.fleet.replicas, self.now)

    def send(self, asked: Ask) -> tuple[Key, Lease]:
        self.serial += 1
        lease = leased(self.fleet, asked, self.now)
        self.predicted += lease.route.cached
        key = Key(WORKER, self.serial)
        self.shadow.sent(key, asked, lease.replica, self.now)
        return key, lease

    def start(self, sent: tuple[Key, Lease]) -> None:
        sent[1].first_token(self.now)
        self.shadow.started(sent[0], self.now)

    def end(self, sent: tuple[Key, Lease], usage: Usage | None = None) -> None:
        sent[1].finish(Outcome.OK, usage, self.now)
        self.shadow.ended(sent[0], Outcome.OK, usage or Usage(), self.now)

    def serve(self, asked: Ask, seconds: float = 1.0, usage: Usage | None = None) -> None:
        sent = self.send(asked)
        self.now += 0.1
        self.start(sent)
        self.now += seconds
        self.end(sent, usage)


def chats(count: int, turns: int) -> Iterator[Ask]:
    """So many chats behind one system prompt, a turn of each in turn; each turn is the last one and four blocks."""
    for turn in range(1, turns + 1):
        for chat in range(count):
            yield ask(("system", 2), (f"chat{chat}", 4 * turn))


# What is compared.


@pytest.mark.parametrize("policy", [PrefixAffinity, RoundRobin])
def test_a_policy_in_its_own_shadow_agrees_with_itself_and_both_sides_have_what_the_router_predicted(
    policy: type[PrefixAffinity] | type[RoundRobin],
) -> None:
    stage = Stage(policy(), policy())
    for asked in chats(30, 4):
        stage.align()
        stage.serve(asked, usage=Usage(asked.size // 5, 40, None))
    counts = stage.counts
    assert counts.choices() == (("same", 120), ("other", 0), ("none", 0))
    assert counts.live.predicted == counts.shadow.predicted == stage.predicted > 0
    assert counts.live.ahead == counts.shadow.ahead


def test_round_robin_in_the_shadow_of_affinity_hits_only_what_it_has_been_to() -> None:
    stage = Stage(PrefixAffinity(), RoundRobin())
    for asked in chats(31, 4):  # No multiple of four, or a turn would come to where the last one was.
        stage.serve(asked)
    live, shadow = stage.counts.live.predicted, stage.counts.shadow.predicted
    system = 2 * TOKENS_PER_BLOCK
    turns = [4 * TOKENS_PER_BLOCK * turn for turn in (1, 2, 3)]
    assert live >= sum(31 * (system + turn) for turn in turns)
    assert 0 < shadow < live / 2
    assert stage.counts.other > stage.counts.same > 0
    assert stage.counts.prompt_tokens == sum(31 * (system + 4 * TOKENS_PER_BLOCK * turn) for turn in (1, 2, 3, 4))


def test_a_shadow_that_piles_requests_up_is_seen_to_do_so() -> None:
    stage = Stage(LeastRequests(), First())
    for i in range(8):
        stage.send(ask((f"p{i}", 4)))
    assert stage.counts.live.ahead == 4
    assert stage.counts.shadow.ahead == sum(range(8))


def test_what_the_real_engine_had_cached_corrects_no_shadow() -> None:
    """It would correct the one side alone: the other went elsewhere."""
    stage = Stage(RoundRobin(), PrefixAffinity(), replicas=2)
    prompt = ask(("a", 20))
    for _ in range(3):
        stage.serve(prompt, usage=Usage(20 * TOKENS_PER_BLOCK, 5, 0))
    assert stage.counts.shadow.predicted == 2 * 20 * TOKENS_PER_BLOCK
    assert stage.counts.live.predicted == 20 * TOKENS_PER_BLOCK


def test_an_ask_that_the_shadows_limits_cut_everywhere_goes_nowhere_and_counts_on_neither_side() -> None:
    stage = Stage(RoundRobin(), PrefixAffinity(None, Limits(max_queued_requests=1)), replicas=2)
    sent = [stage.send(ask((f"p{i}", 4))) for i in range(3)]
    assert stage.counts.nowhere == 1
    assert stage.counts.prompt_tokens == 2 * 4 * TOKENS_PER_BLOCK
    assert (stage.counts.live.ahead, stage.counts.shadow.ahead) == (0, 0)
    for each in sent:
        stage.start(each)
        stage.end(each)
    stage.serve(ask(("p9", 4)))
    assert stage.counts.nowhere == 1


def test_an_ask_without_a_prompt_is_load_and_no_tokens() -> None:
    stage = Stage(RoundRobin(), LeastRequests(), replicas=2)
    for _ in range(4):
        stage.send(Ask(MODEL))
    assert (stage.counts.prompt_tokens, stage.counts.shadow.ahead) == (0, 2)


def test_who_alone_can_answer_is_asked_by_the_shadow_too() -> None:
    stage = Stage(RoundRobin(), RoundRobin(), replicas=3)
    for _ in range(3):
        stage.send(ask(("a", 4))._replace(only="r2"))
    assert stage.counts.same == 3


# What does not count, and what ends.


def test_times_of_the_real_replicas_teach_the_shadow_no_speed_but_the_workers_do() -> None:
    stage = Stage(RoundRobin(), PrefixAffinity(), replicas=1)
    for i in range(5):
        stage.serve(ask((f"p{i}", 40)), usage=Usage(5000, 50, 0))
    for world in worlds(stage.shadow):
        assert (world.replica("r0").lin, world.replica("r0").known_step) == (None, None)
    real = stage.fleet.replica("r0")
    assert real.lin is not None
    stage.align()
    for world in worlds(stage.shadow):
        assert world.replica("r0").rates() == (real.lin, 0, real.known_step, 0)


def worlds(shadow: Shadow) -> list[Fleet]:
    return [shadow._live.fleet, shadow._shadow.fleet]


def test_a_worker_that_is_lost_takes_its_asks_along_and_what_comes_late_is_ignored() -> None:
    stage = Stage(RoundRobin(), RoundRobin(), replicas=2)
    sent = [stage.send(ask((f"p{i}", 4))) for i in range(4)]
    stage.start(sent[0])
    other = Key("other", 1)
    stage.shadow.sent(other, ask(("o", 4)), "r0", 0.0)
    stage.shadow.lost(WORKER, 1.0)
    for world in worlds(stage.shadow):
        assert sum(replica.requests for replica in world.replicas) == 1
    for each in sent:
        stage.start(each) if each is not sent[0] else None
        stage.end(each)
    stage.shadow.ended(other, Outcome.ABORTED, Usage(), 2.0)
    for world in worlds(stage.shadow):
        for replica in world.replicas:
            assert (replica.requests, replica.unstarted, replica.backlog_tokens, replica.context_tokens) == (0,) * 4


def test_the_members_are_those_of_the_real_fleet() -> None:
    stage = Stage(RoundRobin(), RoundRobin(), replicas=2)
    fleet, shadow = stage.fleet, worlds(stage.shadow)[1]
    stage.serve(ask(("a", 8)))
    open_ask = stage.send(ask(("b", 8)))
    fleet.join([ReplicaSpec("r2", max_concurrency=1)], 1.0)
    fleet.serves("r2", {MODEL: {}})
    fleet.mark("r2", State.READY, "test", 1.0)
    fleet.mark("r1", State.EJECTED, "test", 1.0)
    fleet.engine("r0", 7.0, 123, 1.0)
    stage.align()
    assert [(each.id, each.state) for each in shadow.replicas] == [
        ("r0", State.READY), ("r1", State.DOWN), ("r2", State.READY),
    ]  # fmt: skip
    assert shadow.replica("r0").kv_tokens == 123
    assert shadow.residency.held("r0") == 8
    fleet.engine("r0", 8.0, 123, 2.0)
    fleet.mark("r1", State.DOWN, "test", 2.0)
    fleet.mark("r1", State.READY, "test", 2.0)
    fleet.leave("r2")
    stage.align()
    assert shadow.residency.held("r0") == 0
    assert [(each.id, each.state) for each in shadow.replicas] == [("r0", State.READY), ("r1", State.READY)]
    fleet.leave("r1")
    stage.align()
    stage.start(open_ask)
    stage.end(open_ask)
    stage.shadow.sent(Key(WORKER, 99), ask(("c", 8)), "r1", 3.0)
    assert stage.counts.same + stage.counts.other == 2


def test_the_live_side_goes_where_the_ask_went_whatever_limits_and_probes_say() -> None:
    stage = Stage(RoundRobin(), RoundRobin(), replicas=1, max_concurrency=1)
    stage.fleet.replica("r0").respec(ReplicaSpec("r0", max_concurrency=1))
    stage.fleet.mark("r0", State.DOWN, "test", 0.0)
    stage.align()
    for i in range(3):
        stage.shadow.sent(Key(WORKER, i), ask(("a", 4)), "r0", 0.0)
    assert stage.counts.nowhere == 3
    assert worlds(stage.shadow)[0].replica("r0").requests == 3


# The sample.


def test_a_sample_is_so_large_and_a_share_of_one_is_everything() -> None:
    families = [asked.chain[5] for asked in (ask(("system", 2), (f"c{i}", 4)) for i in range(4000))]
    assert all(drawn(family, 1.0) for family in [*families, 0, 2**64 - 1])
    assert not any(drawn(family, 0.0) for family in families)
    assert sum(drawn(family, 0.1) for family in families) == pytest.approx(400, abs=80)  # 4 standard deviations.
    few = {family for family in families if drawn(family, 0.1)}
    assert few <= {family for family in families if drawn(family, 0.3)}


def test_a_samples_families_have_their_homes_all_over_the_ring() -> None:
    """A chain hash is its own place on the ring: the lowest tenth of them would have a tenth of the homes."""
    ring, rng = Ring(f"r{i}" for i in range(8)), Random(3)
    families = [rng.getrandbits(64) for _ in range(40_000)]
    every = Counter(ring.order(family)[0] for family in families)
    some = Counter(ring.order(family)[0] for family in families if drawn(family, 0.05))
    for replica, count in every.items():
        assert some[replica] / some.total() == pytest.approx(count / every.total(), abs=0.04)


def test_a_sampled_request_weighs_as_those_that_it_stands_for() -> None:
    stage = Stage(RoundRobin(), LeastRequests(), replicas=1, sample=0.25)
    first = stage.send(ask(("a", 8)))
    assert stage.counts.shadow.ahead == 0
    stage.send(ask(("b", 8)))
    assert stage.counts.live.ahead == stage.counts.shadow.ahead == 4
    stage.start(first)
    stage.send(ask(("c", 8)))
    load = worlds(stage.shadow)[1].replica("r0").whole
    tokens = 8 * TOKENS_PER_BLOCK
    assert (load.requests, load.unstarted) == (3 + 3 * 2, 2 + 3 * 1)  # Those left out for the newest come next time.
    assert (load.context, load.backlog) == (tokens * load.requests, tokens * load.unstarted)
    stage.end(first)
    stage.send(ask(("d", 8)))
    load = worlds(stage.shadow)[1].replica("r0").whole
    assert (load.requests, load.unstarted) == (3 + 3 * 2, 3 + 3 * 2)


@pytest.mark.parametrize(
    ("counts", "trust"),
    [
        ([], 1),
        ([7], 1),
        ([0, 0, 0], 0),
        ([3, 3, 3], 0),
        ([1, 0, 1, 0], 0),
        ([40, 0, 0, 0], 0.975),
        ([9, 1], 1 - 5 / 32),
    ],
)
def test_a_samples_counts_tell_replicas_apart_beyond_chance(counts: list[int], trust: float) -> None:
    assert trusted(counts) == pytest.approx(trust)


def test_those_left_out_are_spread_evenly_unless_the_sample_shows_a_pile() -> None:
    """A tenth of 40 requests on eight replicas leaves half of them empty, which nobody would find them."""

    def ahead(shadow: Policy) -> float:
        stage = Stage(RoundRobin(), shadow, replicas=8, sample=0.1)
        asks = 40
        for i in range(asks):
            stage.send(ask((f"p{i}", 4)))
            if stage.serial > 4:
                stage.shadow.ended(Key(WORKER, stage.serial - 4), Outcome.OK, Usage(), 0.0)
        return stage.counts.shadow.ahead / asks

    assert 3.5 <= ahead(LeastRequests()) <= 5.5
    assert 20 <= ahead(First()) <= 40


@pytest.mark.parametrize(("sample", "blocks"), [(1.0, 1000), (0.5, 500), (0.1, 100)])
def test_of_each_cache_the_sample_has_its_share(sample: float, blocks: int) -> None:
    stage = Stage(RoundRobin(), RoundRobin(), replicas=1, sample=sample)
    stage.fleet.engine("r0", None, 1000 * TOKENS_PER_BLOCK + 256, 0.0)  # The outputs in flight are taken off.
    stage.align()
    for i in range(30):
        stage.serve(ask((f"p{i}", 40)))
    for world in worlds(stage.shadow):
        assert world.residency.held("r0") == pytest.approx(blocks, abs=2 + 256 / TOKENS_PER_BLOCK / sample)


def test_memory_is_bounded_by_the_samples_share_of_the_index() -> None:
    stage = Stage(RoundRobin(), RoundRobin(), replicas=2, sample=0.5, index_blocks=200)
    for i in range(40):
        stage.serve(ask((f"p{i}", 30)))
    for world in worlds(stage.shadow):
        assert 60 <= len(world.residency) <= 100


def test_a_sample_of_chats_shows_what_all_of_them_would() -> None:
    """Half of 400 chats, by family: its hit shares are those of all, to the error that the file names."""
    shares = []
    for sample in (1.0, 0.5):
        stage, rng = Stage(PrefixAffinity(), RoundRobin(), sample=sample), Random(5)
        for turn in range(1, 4):
            for chat in rng.sample(range(400), 400):
                asked = ask(("system", 2), (f"chat{chat}", 4 * turn))
                if drawn(asked.chain[2], sample):
                    stage.serve(asked, seconds=0.01)
        tokens = stage.counts.prompt_tokens
        shares.append([side.predicted / tokens for _, side in stage.counts.sides()])
    assert shares[1] == pytest.approx(shares[0], abs=0.04)
    assert shares[0][0] > shares[0][1] + 0.2
