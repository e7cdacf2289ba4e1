"""Tenants with keys, limits and bills: two gateways count together in a real Redis and a real PostgreSQL.

Both run on this machine, so the cluster's pods have to reach it: that of devcluster does.
"""

import json
import os
import secrets
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import openai
import pytest

from testkit import ROOT
from testkit.cluster.deployment import Deployment
from testkit.cluster.installation import Installation
from testkit.cluster.kube import SYSTEM
from testkit.cluster.release import is_devcluster
from testkit.until import until
from testkit.world.addresses import own_address
from tests.support.postgres import postgres
from tests.support.redis import RedisServer, redis_server

pytestmark = pytest.mark.extended

PER_MINUTE = 60
PRICES = {"inputPerMillion": "1000", "outputPerMillion": "2000"}
WORKERS = 4


@pytest.fixture
def redis(slipway: Installation) -> Iterator[RedisServer]:
    """The release counts limits in this Redis, and writes usage into a PostgreSQL."""
    if not is_devcluster(slipway.kube):
        pytest.skip("pods of a foreign cluster do not reach this machine")
    with redis_server(host=own_address()) as counters, postgres(own_address()) as ledger:
        for name, url in (("e2e-redis", counters.url), ("e2e-ledger", ledger.url)):
            manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"url": url}}
            slipway.kube.apply(manifest, SYSTEM)
        try:
            # A second for an answer: this machine is busy.
            slipway.upgrade(
                quotas={"redis": {"urlSecret": {"name": "e2e-redis"}, "timeoutSeconds": 1}},
                gateway={"ledger": {"urlSecret": {"name": "e2e-ledger"}}},
            )
            slipway.until_well()
            yield counters
        finally:
            slipway.upgrade()
            slipway.until_well()
            slipway.kube.kubectl("delete", "secret", "e2e-redis", "e2e-ledger", "--namespace", SYSTEM)


@pytest.fixture
def tenant(slipway: Installation) -> Iterator[Callable[..., tuple[str, str]]]:
    """Makes a Tenant: (its name, a key that the command line made)."""
    names: list[str] = []

    def make(model: str, **spec: object) -> tuple[str, str]:
        names.append(f"team-{secrets.token_hex(3)}")
        fields = {"models": [model], "prices": [{"model": model, **PRICES}], **spec}
        manifest = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": names[-1]}}
        slipway.kube.apply(manifest | {"spec": fields}, "default")
        return names[-1], command(slipway, "keys", "create", names[-1]).strip()

    yield make
    slipway.kube.kubectl("delete", "tenants", *names, "--ignore-not-found")


def command(slipway: Installation, *arguments: str) -> str:
    """What `slipway` prints."""
    path = os.pathsep.join(str(ROOT / part) for part in ("cli", "contracts", "process"))
    environment = os.environ | {"KUBECONFIG": str(slipway.kube.kubeconfig), "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-m", "slipway_cli", *arguments], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Client:
    """Requests with one key, on connections of its own; what their responses say was used."""

    def __init__(self, slipway: Installation, model: str, key: str) -> None:
        self.used: Counter[str] = Counter()
        self._model, self._lock = model, threading.Lock()
        self._api = openai.OpenAI(base_url=slipway.url, api_key=key, max_retries=2)

    def send(self, text: str) -> bool:
        """Whether it was taken, and not refused because of a limit."""
        try:
            answer = self._api.with_options(max_retries=0).chat.completions.create(
                model=self._model, messages=[{"role": "user", "content": text}], max_tokens=2
            )
        except openai.RateLimitError:
            return False
        self._add(answer.usage)
        return True

    def keep_on(self, over: threading.Event) -> None:
        """Requests one after the other; an error of one ends the test by a count that differs."""
        while not over.is_set():
            answer = self._api.chat.completions.create(
                model=self._model, messages=[{"role": "user", "content": "Go on."}], max_tokens=8
            )
            self._add(answer.usage)

    def _add(self, usage: openai.types.CompletionUsage | None) -> None:
        assert usage is not None
        with self._lock:
            self.used.update(requests=1, input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens)


def billed(slipway: Installation, name: str) -> dict[str, int]:
    """Usage of a tenant by the ledger, as `slipway usage` prints it."""
    rows = json.loads(command(slipway, "usage", name, "--by", "tenant", "-o", "json"))
    return {field: int(rows[0][field]) for field in ("requests", "input_tokens", "output_tokens")} if rows else {}


def until_known(client: Client) -> None:
    """Both gateways follow Tenants within two seconds; a request that none takes yet costs nothing."""

    def taken() -> bool:
        try:
            return client.send("?")
        except openai.AuthenticationError:
            return False

    until(lambda: all(taken() for _ in range(4)), "the key is valid", 60)


@pytest.mark.timeout(600, func_only=True)
def test_two_gateways_count_limits_together_and_write_each_token_once(
    slipway: Installation,
    redis: RedisServer,
    deploy: Callable[..., Deployment],
    tenant: Callable[..., tuple[str, str]],
) -> None:
    chat = deploy("v1")
    chat.until_stable("v1")
    limited, key = tenant(chat.model, limits={"requestsPerMinute": PER_MINUTE, "burstSeconds": 60})
    client = Client(slipway, chat.model, key)
    until_known(client)
    # All by one connection, so by one gateway: counting alone it would take its half.
    taken = client.used["requests"]
    while client.send("?"):
        taken += 1
        assert taken < 3 * PER_MINUTE, "the limit is none"
    assert taken >= PER_MINUTE * 0.9, "a gateway that counts alone takes half of it"
    stranger = Client(slipway, chat.model, key)
    assert sum(stranger.send("?") for _ in range(30)) <= PER_MINUTE / 6, (
        "nor does another gateway begin with a full bucket"
    )
    spent = client.used + stranger.used

    unlimited, key = tenant(chat.model)
    steady = Client(slipway, chat.model, key)
    until_known(steady)
    over = threading.Event()
    workers = [threading.Thread(target=steady.keep_on, args=(over,), daemon=True) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    served = steady.used["requests"]
    until(lambda: steady.used["requests"] > served + 20, "requests are served", 60)
    [former, *_] = slipway.ready("gateway")
    slipway.dismiss(former)
    redis.kill()  # each gateway has its part of limits meanwhile; this tenant has none
    until(lambda: not slipway.is_there(former), "the gateway has drained", 120)
    slipway.until_well()
    redis.start()
    served = steady.used["requests"]
    until(lambda: steady.used["requests"] > served + 20, "requests are served", 60)
    assert all(worker.is_alive() for worker in workers), "no request failed"
    over.set()
    for worker in workers:
        worker.join(60)
    until(lambda: billed(slipway, unlimited), "the ledger has it", 60, holds=lambda bill: bill == steady.used)
    until(lambda: billed(slipway, limited), "and what was limited", 60, holds=lambda bill: bill == spent)
