"""Who asks us to connect to a PBX, and what becomes of that connection where they may not after all."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.requests import Request
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from duplex.auth import Authority
from duplex.client_secrets import Bounds, ClientSecrets, Grant
from duplex.config import Config
from duplex.telephony.asterisk import SUBPROTOCOL
from duplex.telephony.asterisk_endpoint import AsteriskEndpoint
from duplex.telephony.entrance import TELEPHONY
from sessions.memory_store import MemorySessionStore
from tests.duplex.telephony.test_entrance import entrance

S_MAX = 10


class Pbx:
    """Takes connections. Once one has come, `then` happens before the handshake is over."""

    def __init__(self, then: Any) -> None:
        self._then = then
        self.left = asyncio.Event()

    async def shake_hands(self, *_args: object) -> None:
        await self._then()

    async def stay(self, socket: ServerConnection) -> None:
        await socket.wait_closed()
        self.left.set()


def asking(url: str, token: str) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps({"url": url}).encode()}

    headers = [(b"authorization", f"Bearer {token}".encode())]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)


@pytest.mark.parametrize("breaks", [False, True], ids=["spent meanwhile", "our own fault"])
def test_a_connection_that_may_not_be_used_after_all_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, breaks: bool
) -> None:
    async def scenario() -> None:
        secrets = ClientSecrets(MemorySessionStore(lambda: 0))
        ticket = await secrets.mint(60, Grant(None, bounds=Bounds(TELEPHONY)))
        pbx = Pbx(lambda: secrets.spend(ticket))
        async with serve(
            pbx.stay, "127.0.0.1", 0, subprotocols=[Subprotocol(SUBPROTOCOL)], process_request=pbx.shake_hands
        ) as server:
            here = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
            config = Config(engine="scripted", data_dir=tmp_path, token=SecretStr("right"), asterisk_urls=(here,))
            authority = Authority(config, secrets)
            endpoint = AsteriskEndpoint(config, entrance(tmp_path), authority)
            if breaks:
                monkeypatch.setattr(authority, "spend", lambda *_: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    await endpoint.begin(asking(f"{here}/media/x", ticket))
            else:
                assert (await endpoint.begin(asking(f"{here}/media/x", ticket))).status_code == 401
            await pbx.left.wait()

    async def run() -> None:
        async with asyncio.timeout(S_MAX):
            await scenario()

    asyncio.run(run())
