"""What the pairs of loadtests.gossip_cost are judged by, and the prompts that they send."""

import msgspec

from loadtests.gossip_cost import Arm, Verdict, verdicts
from loadtests.gossip_cost_bed import KNOWN, Prompts, prompt


def arm(gossip: bool, cpu: float, resident: float = 0.8, grown: float = 1.0) -> Arm:
    memory = (100.0, 100.0 * grown)
    return Arm(gossip, resident, 1000, 0, cpu / 4, 3 * cpu / 4, 1.0, 5.0, memory, 40.0, 1e4)


def test_what_counts_is_the_median_of_the_ratios_within_pairs() -> None:
    pairs = [(arm(False, 100.0), arm(True, on)) for on in (110.0, 120.0, 900.0)]
    [cpu, *others] = verdicts(pairs)
    assert (cpu.median, cpu.missed) == (1.2, False)
    assert not any(verdict.missed for verdict in others)
    [cpu, *_] = verdicts([(off, arm(True, 126.0)) for off, _ in pairs])
    assert cpu.missed
    assert str(cpu).endswith("MISSED")


def test_prompts_that_are_all_new_have_figures_and_no_goals() -> None:
    pairs = [(arm(False, 100.0, 0.0), arm(True, 300.0, 0.0, grown=2.0))]
    assert [verdict.most for verdict in verdicts(pairs)] == [None] * 4
    assert not any(verdict.missed for verdict in verdicts(pairs))


def test_memory_that_grows_misses_its_goal() -> None:
    [missed] = [each for each in verdicts([(arm(False, 1.0), arm(True, 1.0, grown=1.2))]) if each.missed]
    assert "memory" in missed.what


def test_ratios_on_both_sides_of_one_are_no_difference_where_noise_is_expected() -> None:
    assert not Verdict("p99", (0.9, 1.4, 1.6), 1.25, noise=True).missed
    assert Verdict("p99", (1.1, 1.4, 1.6), 1.25, noise=True).missed
    assert Verdict("p50", (0.9, 1.4, 1.6), 1.25).missed


def test_the_known_share_of_the_prompts_is_the_same_for_all_clients_and_the_rest_is_nobody_elses() -> None:
    known = {prompt(number) for number in range(KNOWN)}
    sent = [[client.body(number) for number in range(1000)] for client in (Prompts(1, 0.8), Prompts(2, 0.8))]
    new = [[body for body in bodies if body not in known] for bodies in sent]
    assert all(150 < len(each) < 250 for each in new)
    assert len({*new[0], *new[1]}) == len(new[0]) + len(new[1])
    assert 8_000 < len(msgspec.json.decode(sent[0][0])["messages"][0]["content"]) < 8_020
