"""TLS for clients: who gets in, what the others get, and that everything is as it is without."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router.core.record import HandshakeError
from tests.authority import Authority, Pair
from tests.browser import asked, chat, connected, get, post
from tests.rig import Rig, scripted, until
from tests.scripted import HOST, STREAM, Script, ScriptedReplica, hang, sent, whole


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def section(pair: Pair, **more: Any) -> dict[str, Any]:
    """The settings `tls` with this certificate."""
    return {"certificate_file": str(pair.certificate), "key_file": str(pair.key), **more}


@asynccontextmanager
async def secured(
    authority: Authority, *scripts: Script, tls: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[Rig, list[ScriptedReplica]]]:
    """As `scripted`, and clients speak TLS."""
    async with scripted(*scripts, tls=section(authority.pair(), **tls or {}), **settings) as (rig, replicas):
        rig.tls = authority.trusting()
        yield rig, replicas


async def test_a_client_is_answered_by_tls(authority: Authority) -> None:
    async with secured(authority, whole(b"ok")) as (rig, [replica]):
        answer = await asked(rig, chat())
        assert (answer.status, answer.body, answer.whole) == (200, b"ok", True)
        assert len(replica.calls) == 1
