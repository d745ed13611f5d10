"""News that is late, doubled, out of order or lost: load is never negative, and right again with the next heartbeat."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.fleet import Fleet
from router.gossip import messages
from router.gossip.incoming import Incoming
from router.gossip.messages import Batch, Codec, Load
from router.gossip.outgoing import Outgoing
from router.gossip.seal import Seal
from tests.core.worlds import fleet_of

SECRET = "a secret of the fleet"
REPLICAS = ("r0", "r1", "r2")
Step = tuple[str, int, int, int]


class Speaker:
    """A router with one worker, whose load the test sets."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fleet: Fleet = fleet_of(3)
        self.out = Outgoing(self.fleet, name, 512, lambda: 0.0)
        self.seal = Seal(SECRET, name.encode().ljust(8))
        self.load: dict[str, int] = {}
        self._sequence = 0

    def set(self, replica: str, count: int) -> None:
        self.load[replica] = count
        self._sequence += 1
        row = (count, count, count * 10, count * 20, 0, 0.0, 0.0, 0.0)
        self.fleet.peers.loaded("0", self._sequence, {replica: messages.totals(row)}, False, 0.0)
        self.out.take("0", Load("0", self._sequence, False, {replica: row}))

    def sealed(self, batch: Batch | None) -> list[bytes]:
        return [] if batch is None else [self.seal.close(Codec().encode(batch))]


class Listener:
    """A third router's worker, as far as load goes."""

    def __init__(self) -> None:
        self.fleet: Fleet = fleet_of(3)
        self.incoming = Incoming(Seal(SECRET, b"listener"), 512, self._heard, lambda peer: None)

    def _heard(self, batch: Batch, _: bytes, __: bool) -> None:
        for message in batch.news:
            if isinstance(message, Load):
                loads = {name: messages.totals(row) for name, row in message.loads.items()}
                self.fleet.peers.loaded(message.peer, message.sequence, loads, message.whole, 0.0)

    def requests(self) -> dict[str, int]:
        return {each.id: each.others.requests if each.others else 0 for each in self.fleet.replicas}


def say(kind: str, speaker: Speaker, replica: str, count: int) -> list[bytes]:
    """What goes onto the wire."""
    if kind == "load":
        speaker.set(replica, count)
        return []
    return speaker.sealed(speaker.out.batch({}) if kind == "tell" else speaker.out.beat())


def play(steps: Sequence[Step], speakers: Sequence[Speaker], listener: Listener) -> None:
    """Do all of this; what is on the way stays in a list that is delivered from anywhere, or not at all."""
    wire: list[bytes] = []
    for kind, who, where, count in steps:
        if kind in {"load", "tell", "beat"}:
            wire += say(kind, speakers[who], REPLICAS[where % 3], count)
        elif wire:
            data = wire[where % len(wire)]
            if kind != "twice":
                wire.remove(data)
            if kind != "lose":
                listener.incoming.take(data, 0.0)
        known = [quantity for replica in listener.fleet.replicas for quantity in (replica.others or ())]
        assert min(known, default=0) >= 0
    for data in wire:
        listener.incoming.take(data, 0.0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("load", "load", "tell", "tell", "beat", "deliver", "deliver", "twice", "lose")),
        st.integers(0, 1),
        st.integers(0, 20),
        st.integers(0, 9),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(steps=STEPS)
def test_whatever_happens_on_the_way_load_is_never_negative_and_the_next_heartbeat_makes_it_right(
    steps: list[Step],
) -> None:
    speakers, listener = (Speaker("one"), Speaker("two")), Listener()
    play(steps, speakers, listener)
    for speaker in speakers:
        listener.incoming.take(speaker.sealed(speaker.out.beat())[0], 0.0)
    assert listener.requests() == {
        replica: sum(speaker.load.get(replica, 0) for speaker in speakers) for replica in REPLICAS
    }
    assert not listener.incoming.flaws.counted
