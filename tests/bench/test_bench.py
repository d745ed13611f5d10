"""The benchmark runs; what it measures is not judged here, since time on a shared machine says nothing."""

from tests.bench.pick import cost, megabytes


def test_the_benchmark_of_a_pick_runs() -> None:
    small, large = cost(4, 20), cost(50, 20)
    assert small.target == 84
    assert large.target == 130
    assert 0 < small.median <= small.p90


def test_the_index_is_weighed() -> None:
    assert megabytes(2000) >= 0
