"""What the fleet's processes are told. (That they run is tests/e2e's to show.)"""

from pathlib import Path

import pytest

from loadtests.compare import POLICIES
from loadtests.fleet import GRACE_S, Fleet, FleetShape, router_yaml
from router.loading import load

BUILT = Fleet("http://127.0.0.1:1", "http://127.0.0.1:2", {"r1": "http://127.0.0.1:3", "r2": "http://127.0.0.1:4"}, ())


@pytest.mark.parametrize("policy", POLICIES)
def test_the_router_accepts_its_configuration(policy: str, tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    path.write_text(router_yaml(BUILT, policy))
    config = load(path).config
    assert (str(config.listen), str(config.admin.listen)) == ("127.0.0.1:1", "127.0.0.1:2")
    assert {replica.id: replica.url for replica in config.replicas} == BUILT.replicas
    assert config.routing.policy == policy
    assert config.drain.timeout < GRACE_S


def test_replicas_are_named_by_number() -> None:
    assert FleetShape(n=3).ids == ["r1", "r2", "r3"]
