"""What the log says of Redis: each change at once, and no storm; which setting to look at; what is not understood."""

import logging
import ssl

import pytest
from redis.exceptions import AuthenticationError, ConnectionError, NoPermissionError

from router.gossip.flaws import QUIET, REMEDIES, Flaws
from router.gossip.redis import reason
from router.gossip.seal import Flaw, Unusable, common
from router.gossip.standing import LINES, WINDOW, Standing


def test_each_change_is_said_and_what_stays_as_it_was_is_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "homing.gossip")
    standing = Standing(0.0)
    for now, problem in enumerate(("refused", "refused", "no answer", None, None, "frozen", None)):
        standing.turned(problem, float(now))
    assert [(record.levelname, record.message.split("(after")[0]) for record in caplog.records] == [
        ("WARNING", "Redis: refused; routing goes on from what this router knows"),
        ("INFO", "load and beliefs are shared with the other routers over Redis "),
        ("WARNING", "Redis: frozen; routing goes on from what this router knows"),
        ("INFO", "load and beliefs are shared with the other routers over Redis "),
    ]
    assert "(after 3.0 s)" in caplog.records[1].message


def test_a_line_that_comes_and_goes_fills_no_log_and_what_holds_in_the_end_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "homing.gossip")
    standing = Standing(0.0)
    for tick in range(101):
        standing.turned("flaps" if tick % 2 == 0 else None, tick / 10)
    assert len(caplog.records) == LINES
    standing.look(WINDOW - 0.1)
    assert len(caplog.records) == LINES
    standing.look(WINDOW)
    assert caplog.records[-1].message.endswith("it has changed 95 times meanwhile")
    assert caplog.records[-1].levelname == "WARNING"
    standing.look(2 * WINDOW)
    assert (len(caplog.records), standing.problem, standing.since) == (LINES + 1, "flaps", 10.0)


@pytest.mark.parametrize("flaw", Flaw)
def test_what_is_not_taken_is_counted_always_and_said_once_an_hour(
    flaw: Flaw, caplog: pytest.LogCaptureFixture
) -> None:
    flaws = Flaws()
    for now in (0.0, 1.0, QUIET - 1):
        flaws.note(Unusable(flaw, "this"), now)
    assert [record.message for record in caplog.records] == [f"{REMEDIES[flaw]} (this)"]
    flaws.note(Unusable(flaw), QUIET)
    assert caplog.records[-1].message == REMEDIES[flaw]
    assert (len(caplog.records), flaws.counted[flaw]) == (2, 4)


@pytest.mark.parametrize(
    ("failed", "setting"),
    [
        (AuthenticationError("invalid"), "`gossip.password_file`"),
        (NoPermissionError("may not"), "`gossip.user` needs"),
        (ssl.SSLCertVerificationError("unknown"), "`gossip.tls.ca_file`"),
        (ssl.SSLError("wrong version number"), "`gossip.url`"),
    ],
)
def test_the_setting_to_look_at_is_named_however_deep_the_cause_lies(failed: Exception, setting: str) -> None:
    assert setting in reason(failed)
    hidden = ConnectionError("it\ndid not work")
    hidden.__context__ = failed
    told = reason(ExceptionGroup("tasks", [ExceptionGroup("task", [hidden])]))
    assert told.startswith("it did not work (")
    assert setting in told


def test_what_says_nothing_is_named_by_its_kind() -> None:
    assert reason(ExceptionGroup("tasks", [OSError()])) == "OSError"
    assert reason(OSError("refused")) == "refused"


def test_the_common_key_follows_from_the_replicas_in_any_order() -> None:
    assert common(["a", "b"]) == common(["b", "a"]) != common(["a"])
    assert common(["a"]).startswith("homing:same:")
