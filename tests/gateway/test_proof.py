"""On the way to a server each request with a tenant has a proof of it, made when it is sent (safety 19)."""

import base64
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from slipway_gateway.upstream import tenant_proof as proof

from .harness import echo, gateway, upstream

pytestmark = [pytest.mark.attack_class(9, 11, 19), pytest.mark.finding(19)]

MASTER = b"m" * 32
TENANT, PROOF = "X-Slipway-Tenant", "X-Slipway-Tenant-Proof"
FORGED = {"x-slipway-tenant-proof": "v1.k.1." + "0" * 64, "X-SLIPWAY-TENANT": "f" * 32}


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = tmp_path / "tenant.json"
    key = base64.urlsafe_b64encode(MASTER).decode()
    path.write_text(json.dumps({"keys": [{"id": "k1", "key": key, "from": 1.0}]}))
    return str(path)


def holds(headers: Any) -> bool:
    window = int(time.time() // 60)
    made = [proof.proof("k1", MASTER, headers[TENANT], "default/chat", window - late) for late in (0, 1)]
    return headers.getall(PROOF) in [[one] for one in made]


async def test_only_a_tenant_has_a_proof(keys: str) -> None:
    async with upstream(echo) as server, gateway(tenant_keys_file=keys) as gate:
        gate.route(("rev", 100, [server.url]))
        for sent in ({"Authorization": "Bearer a"}, {}):
            async with await gate.post({"model": "chat"}, headers=FORGED | sent) as answer:
                assert answer.status == 200
                assert PROOF not in answer.headers
        anna, anonymous = (request.headers for request in server.seen)
        assert holds(anna)
        assert not re.search("tenant", " ".join(anonymous), re.IGNORECASE)


async def test_without_keys_there_is_no_proof(tmp_path: Path) -> None:
    async with upstream(echo) as server, gateway(tenant_keys_file=str(tmp_path / "none")) as gate:
        gate.route(("rev", 100, [server.url]))
        async with await gate.post({"model": "chat"}, headers=FORGED | {"Authorization": "Bearer a"}) as answer:
            assert answer.status == 200
        assert TENANT in server.seen[0].headers and PROOF not in server.seen[0].headers
