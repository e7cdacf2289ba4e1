"""What the engine makes of whose request it is: caches of their own, and turns by what each one got."""

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from testkit.until import until
from tests.server.process import ServerProcess

# A start imports torch and transformers: seconds on a quiet machine, a minute on a crowded one.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

HITS = "vllm:prefix_cache_hits_total"
ANNA, BERT = "a" * 32, "b" * 32


def ask(server: ServerProcess, tenant: str, prompt: str, tokens: int = 1, **more: str) -> int:
    headers = {"Content-Type": "application/json"} | ({"X-Slipway-Tenant": tenant} if tenant else {}) | more
    body = {"model": "tiny-v1", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return int(answer.status)


@pytest.fixture(scope="module")
def one_slot(tiny_v1: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tiny_v1, "--max-num-seqs", "1", "--trust-tenant-header") as process:
        yield process.wait_ready()


def test_caches_and_turns_by_tenant(one_slot: ServerProcess) -> None:
    server = one_slot
    with ThreadPoolExecutor(12) as pool:
        prompt = "And it came to pass in those days, that there went out a decree. " * 4
        hits = []
        for tenant in (ANNA, ANNA, BERT, BERT, "", ""):
            before = server.metric(HITS)
            ask(server, tenant, prompt)
            hits.append(server.metric(HITS) - before)
        # Each tenant has a cache of its own, and requests without a tenant share one.
        known = hits[1]
        assert known >= 32 and hits == [0, known, 0, known, 0, known]

        server.engine.suspend()
        ended: list[str] = []

        def send(name: str, tenant: str, place: int, tokens: int) -> None:
            until(lambda: server.metric("slipway_server_requests_in_flight") == place, f"{place} requests")
            pool.submit(ask, server, tenant, name, tokens).add_done_callback(lambda _: ended.append(name))

        for place in range(6):
            send(f"anna {place}", ANNA, place, 300)
        send("bert", BERT, 6, 3)
        until(lambda: server.metric("slipway_server_requests_in_flight") == 7, "seven requests")
        server.engine.resume()
        until(lambda: len(ended) == 7, "all answers")
        # A single request does not wait behind all earlier ones of another tenant.
        assert ended.index("bert") <= 1


@pytest.mark.finding(19)
@pytest.mark.attack_class(9, 19)
def test_a_forged_tenant_shares_the_cache_of_requests_without_one(tiny_v1: Path) -> None:
    """Safety 19: a server without a proxy takes no tenant without a gateway's proof, and refuses no request."""
    with ServerProcess(tiny_v1, "--max-num-seqs", "1") as server:
        server.wait_ready()
        prompt = "And all went to be taxed, every one into his own city. " * 4
        hits = []
        for tenant in (ANNA, BERT, ""):
            before = server.metric(HITS)
            assert ask(server, tenant, prompt) == 200
            hits.append(server.metric(HITS) - before)
        assert hits[0] == 0 and hits[1] == hits[2] >= 32
        assert server.metric("slipway_server_unproved_tenants_total") == 2


def test_mirrored_requests_come_after_all_others(one_slot: ServerProcess) -> None:
    server = one_slot
    with ThreadPoolExecutor(12) as pool:
        server.engine.suspend()
        ended: list[str] = []
        for place, name in enumerate(("shadow 0", "shadow 1", "shadow 2", "client 0", "client 1")):
            until(lambda at=place: server.metric("slipway_server_requests_in_flight") == at, f"{place} requests")
            shadow = {"X-Slipway-Shadow": "1"} if name.startswith("shadow") else {}
            response = pool.submit(ask, server, ANNA, name, 100, **shadow)
            response.add_done_callback(lambda _, name=name: ended.append(name))
        until(lambda: server.metric("slipway_server_requests_in_flight") == 5, "five requests")
        server.engine.resume()
        until(lambda: len(ended) == 5, "all answers")
        assert ended == ["client 0", "client 1", "shadow 0", "shadow 1", "shadow 2"]
