"""Tenants of the real service: their keys at the door, their sessions, what is taken back while they talk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from tests.duplex.test_tenants import KEY, OTHER_KEY, TWO, replace
from tests.live.caller import calling
from tests.live.service import Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

OPERATOR = {"Authorization": "Bearer of-an-operator"}


@dataclass(frozen=True, slots=True)
class House:
    service: Service
    file: Path


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    file = tmp_path / "tenants.toml"
    replace(file, TWO.replace("sessions = 4", "sessions = 1"))
    with serving(tmp_path / "data", {"tenants_file": str(file), "operator_token": "of-an-operator"}) as service:
        yield House(service, file)


def test_keys_quotas_sessions_and_revocation(house: House) -> None:
    service = house.service
    with calling(service, headers=bearer(KEY)) as mine, calling(service, headers=bearer(OTHER_KEY)) as theirs:
        with pytest.raises(InvalidStatus) as over, calling(service, headers=bearer(KEY)):
            pass
        assert over.value.response.status_code == 429
        assert over.value.response.headers["retry-after"] == "5"
        assert json.loads(over.value.response.body or b"")["error"]["code"] == "quota_exceeded"
        path = f"/v1/sessions/{mine.session}"
        assert service.get(path, **bearer(KEY)).json["tenant"] == "acme"
        assert service.get(path, **bearer(OTHER_KEY)).status == 404
        assert service.get("/v1/events", **bearer(KEY)).status == 401
        events = service.get("/v1/events", **OPERATOR)
        assert KEY not in events.body.decode()
        house.file.with_suffix(".new").write_text(house.file.read_text().replace('"acme"', '"apex"'), encoding="utf-8")
        house.file.with_suffix(".new").rename(house.file)
        assert mine.until_closed() == (4004, "permission_revoked")
        theirs.type_text("Are you there?")
        theirs.send("response.create", response={"output_modalities": ["text"]})
        assert theirs.until("response.done")["response"]["status"] == "completed"
    assert KEY not in "\n".join(service.lines)


def test_a_join_token_opens_one_call(house: House) -> None:
    body = json.dumps({"transport": "websocket"}).encode()
    headers = bearer(KEY) | {"Content-Type": "application/json"}
    token = house.service.send("POST", "/v1/realtime/join_tokens", body, headers).json["value"]
    protocols = ["realtime", f"openai-insecure-api-key.{token}"]
    with calling(house.service, subprotocols=protocols) as caller:
        assert caller.session
    with pytest.raises(InvalidStatus) as spent, calling(house.service, subprotocols=protocols):
        pass
    assert spent.value.response.status_code == 401
    assert token not in "\n".join(house.service.lines)
