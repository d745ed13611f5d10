"""What a router takes of what others tell, and who it believes to be there."""

import msgspec

from router.core.peers import TTL
from router.gossip.incoming import MAX_PEERS, Incoming
from router.gossip.messages import Batch, Bye, Codec, Corrected, Load, Message, Placed
from router.gossip.seal import Flaw, Seal

SECRET = "a secret of the fleet"


class Ear:
    """One router's ear, and the mouth of any others."""

    def __init__(self) -> None:
        self.heard: list[Batch] = []
        self.whole: list[bool] = []
        self.gone: list[str] = []
        self.seal = Seal(SECRET, b"ear" + bytes(5))
        self.mouth = Seal(SECRET, b"mouth" + bytes(3))
        self.incoming = Incoming(self.seal, 512, self._hear, self.gone.append)

    def _hear(self, batch: Batch, payload: bytes, whole: bool) -> None:
        assert msgspec.msgpack.decode(payload, type=Batch) == batch
        self.heard.append(batch)
        self.whole.append(whole)

    def told(self, message: Message, now: float = 0.0) -> None:
        self.incoming.take(self.mouth.close(Codec().encode(message)), now)


def beat(peer: str = "a", block: int = 512) -> Batch:
    return Batch(peer, block, [Load(peer, 1, True, {})])


def test_news_is_passed_on_and_tells_that_its_router_is_there() -> None:
    ear = Ear()
    ear.told(beat("a"), 1.0)
    ear.told(beat("b"), 1.5)
    assert ear.heard == [beat("a"), beat("b")]
    assert (ear.incoming.peers, ear.incoming.oldest(3.0)) == (["a", "b"], 2.0)


def test_who_says_goodbye_or_falls_silent_is_gone_and_can_come_back() -> None:
    """CASES A79."""
    ear = Ear()
    for peer in "ab":
        ear.told(beat(peer), 0.0)
    ear.told(Batch("a", 512, [Bye("a")]), 1.0)
    assert (ear.gone, ear.incoming.peers) == (["a"], ["b"])
    ear.incoming.expire(TTL)
    assert ear.gone == ["a"]
    ear.incoming.expire(TTL + 0.1)
    assert (ear.gone, ear.incoming.peers, ear.incoming.oldest(9.0)) == (["a", "b"], [], 0.0)
    ear.told(beat("a"), 5.0)
    assert ear.incoming.peers == ["a"]


def test_who_was_there_by_a_moment_is_settled_and_who_comes_back_is_not() -> None:
    ear = Ear()
    for peer, now in (("a", 1.0), ("b", 3.0), ("a", 4.0)):
        ear.told(beat(peer), now)
    assert (ear.incoming.settled(0.9), ear.incoming.settled(2.0), ear.incoming.settled(3.0)) == ([], ["a"], ["a", "b"])
    ear.told(Batch("a", 512, [Bye("a")]), 5.0)
    ear.told(beat("a"), 6.0)
    assert ear.incoming.settled(5.0) == ["b"]


def test_what_was_heard_before_is_not_passed_on_again_and_load_is() -> None:
    ear = Ear()
    load = Load("a", 1, True, {})
    ear.told(Batch("a", 512, [Placed("a", [("r1", None, [1]), ("r1", 1, [2])])], 0, 0))
    ear.told(Batch("a", 512, [Placed("a", [("r1", 1, [2]), ("r1", 2, [3])]), Corrected("a", "r1", 3), load], 1, 0))
    ear.told(Batch("a", 512, [Corrected("a", "r1", 3)], 3, 0))
    assert [list(batch.news) for batch in ear.heard[1:]] == [
        [Placed("a", [("r1", 2, [3])]), Corrected("a", "r1", 3), load], [],
    ]  # fmt: skip


def test_who_has_missed_something_lacks_it_until_it_is_told_again_and_takes_nothing_behind_it() -> None:
    ear = Ear()
    first, second, third = (Placed("a", [("r1", None, [number])]) for number in range(3))
    ear.told(Batch("a", 512, [first], 0, 0))
    ear.told(Batch("a", 512, [third, Load("a", 1, False, {})], 2, 0))
    assert (ear.incoming.lacks, ear.heard[-1].news) == ({"a": 1}, [Load("a", 1, False, {})])
    ear.told(Batch("a", 512, [second, third], 1, 0))
    assert (ear.incoming.lacks, ear.heard[-1].news) == ({}, [Placed("a", [("r1", None, [1])]), third])


def test_who_falls_silent_and_comes_back_goes_on_counting_and_nothing_is_lacked_of_who_is_gone() -> None:
    ear = Ear()
    ear.told(Batch("a", 512, [Placed("a", [("r1", None, [1])])], 0, 0))
    ear.told(Batch("b", 512, [], 9, 2))
    assert ear.incoming.lacks == {"b": 2}
    ear.incoming.expire(TTL + 0.1)
    assert ear.incoming.lacks == {}
    ear.told(Batch("a", 512, [], 5, 0), 9.0)
    assert ear.incoming.lacks == {"a": 1}


def test_a_goodbye_of_who_was_not_there_says_nothing() -> None:
    ear = Ear()
    ear.told(Batch("a", 512, [Bye("a")]))
    assert (ear.heard, ear.gone) == ([], [])


def test_what_cannot_be_used_is_dropped_and_counted_by_what_is_wrong() -> None:
    ear = Ear()
    ear.told(Load("a", 1, True, {}))  # No batch.
    ear.told(Batch("a", 512, [Load("b", 1, True, {})]))  # Another's news under this name.
    ear.told(beat("a", block=256))
    ear.incoming.take(Seal("another fleet's secret", b"m" * 8).close(Codec().encode(beat())), 0.0)
    ear.incoming.take(ear.mouth.close(Codec().encode(beat()), b"one place"), 0.0, "another")
    ear.incoming.take(b"", 0.0)
    assert ear.incoming.flaws.counted == {Flaw.MALFORMED: 3, Flaw.SETTINGS: 1, Flaw.FOREIGN: 2}
    assert (ear.heard, ear.incoming.peers) == ([], [])


def test_no_more_routers_are_believed_than_can_be() -> None:
    ear = Ear()
    for number in range(MAX_PEERS + 5):
        ear.told(beat(str(number)))
    ear.told(beat("0"))
    assert (len(ear.incoming.peers), len(ear.heard), ear.incoming.flaws.counted) == (
        MAX_PEERS,
        MAX_PEERS + 1,
        {"peers": 5},
    )


def test_a_whole_load_is_what_one_who_joins_must_know() -> None:
    ear = Ear()
    ear.told(Batch("a", 512, [Load("a", 1, True, {}), Load("a", 1, False, {})]))
    ear.told(Batch("a", 512, [Load("a", 2, False, {}), Corrected("a", "r1", 5)]))
    assert ear.whole == [True, False]
