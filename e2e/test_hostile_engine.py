"""What workloads of a hostile namespace report, and what its requests and hooks take, on a real cluster.

Two Tenants: an honest one with limits and a budget, and a stranger. The stranger's engines answer with usages that no
request can cause, to the honest tenant too, and stream comments that a gateway has to hold back; its requests wait for
a model that never becomes ready, and its hooks hang. The honest tenant's model is measured in windows by turns, alone
and beside that; another one of it wakes, and the first one is rolled out under hooks, once alone and once beside it.
In the end the worst report that a request can cause takes a full bucket of the honest tenant. `make hostile`.

The node's processors are shared by LimitRanges, as in test_hostile.py. What stands in all windows are the stranger's
pods without requests. Its hooks exist from the second rollout on: their notices of Events exceed the 1024 that an
operator has at once, their gates do not exceed its 4096 calls.
"""

import base64
import calendar
import http.client
import itertools
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

import pytest

from e2e.faults import ROOT
from e2e.hostile_engine import (
    HOOKED,
    IMPLAUSIBLE,
    LIES,
    HostileEngine,
    Sent,
    hook_calls,
    hooks_url,
    program,
    receive_hooks,
)
from e2e.hostile_engine_pods import LARGEST, USAGES
from e2e.test_scale_to_zero import SCALED, until_asleep
from e2e.windows import (
    ALONE,
    BEFORE,
    BESIDE,
    ROUNDS,
    SHARE,
    WINDOW_S,
    bar,
    by_turns,
    comparison,
    none,
    row,
    table,
    within,
)
from slipway_cli.objects import api_keys
from slipway_gateway.quotas.bounds import UsageBound
from slipway_gateway.quotas.usage import Usage
from testkit.cluster.api import GROUP_PATH
from testkit.cluster.deployment import START_S, Deployment, Json
from testkit.cluster.installation import Installation
from testkit.cluster.kube import RELEASE, SYSTEM
from testkit.load.flow import Ended, Flow, Shape
from testkit.report import Bar, report, write
from testkit.until import until

SHAPE = Shape(rate=10, max_tokens=16, usage=True)
BURST_S = 10
# Room for what a report can add to each of the honest tenant's requests to the liar, and for its own requests. A bucket
# of output tokens is less than one request without a limit of its own can be charged.
LIMITS = {"requestsPerMinute": 3000, "inputTokensPerMinute": 2_400_000, "outputTokensPerMinute": 60_000,
          "burstSeconds": BURST_S}  # fmt: skip
# Of a currency with large numbers: 2**40 tokens cost more than 63 bits hold.
PRICE = 9000
SPEC: Json = {
    "models": ["*"],
    "limits": LIMITS,
    "prices": [{"model": "*", "inputPerMillion": str(PRICE), "outputPerMillion": str(PRICE)}],
    "budget": {"perDay": "100000"},
}
TYPES = ("confirm-rollout", "pre-rollout", "rollout", "confirm-traffic-increase", "confirm-promotion", "post-rollout",
         "event")  # fmt: skip
WRITTEN_S = 5.0  # after which gateways have written all charges
CHANGES_S = 15.0
STEADY = Sent(lies_per_s=2, streams=10, held=300)
# To a model and a gateway that holds 256 requests in all: more than the places of both gateways.
FLOOD = Sent(held=700)
FLOOD_S, LEAST_HELD = 60, 100
PROMOTED_S = 240
# Of a model's pod, on two cores: how much longer a start may take by chance.
SLACK_S = 10


@dataclass(frozen=True, slots=True)
class Answered:
    """A chat's answer to the honest tenant, and the request that it is for."""

    sent: bytes
    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float


@dataclass(slots=True)
class Honest:
    """A tenant with two models in a namespace of its own, and hooks that answer at once."""

    tenant: str
    key: str = field(repr=False)
    url: str
    chat: Deployment
    sleeper: Deployment
    flow: Flow

    def ask(self, *models: str, stream: bool = False, max_tokens: int | None = 16) -> list[Answered]:
        """One chat after the other with these models over one connection, so by one gateway."""
        where = urlsplit(self.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port or 80, timeout=120)
        try:
            return [self._chat(connection, one, stream, max_tokens) for one in models]
        finally:
            connection.close()

    def _chat(
        self, connection: http.client.HTTPConnection, model: str, stream: bool, max_tokens: int | None
    ) -> Answered:
        body: Json = {"model": model, "messages": [{"role": "user", "content": "Hear"}]}
        body |= {"max_tokens": max_tokens} if max_tokens else {}
        body |= {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        sent, began = json.dumps(body).encode(), time.monotonic()
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        connection.request("POST", f"{urlsplit(self.url).path}/chat/completions", sent, headers)
        response = connection.getresponse()
        shown = {name.lower(): value for name, value in response.getheaders()}
        return Answered(sent, response.status, shown, response.read(), time.monotonic() - began)


@dataclass(slots=True)
class Seen:
    """What was measured."""

    requests: dict[str, list[Ended]] = field(default_factory=dict)  # by kind of window
    all: list[Ended] = field(default_factory=list)
    lies: list[Answered] = field(default_factory=list)  # answers of the liar to the honest tenant
    sent: list[Json] = field(default_factory=list)  # what became of the stranger's requests
    woken: dict[str, Answered] = field(default_factory=dict)
    held: list[int] = field(default_factory=list)  # requests that each gateway held meanwhile
    promoted: dict[str, float] = field(default_factory=dict)
    hooks: dict[str, list[Json]] = field(default_factory=dict)
    hanging: int = 0
    waiting: int = 0
    dropped: int = 0
    after: list[Answered] = field(default_factory=list)  # the honest tenant's own answers after the worst report
    gateways: dict[str, tuple[str, int]] = field(default_factory=dict)


# --- what stands there ------------------------------------------------------------------------------------------------


@pytest.fixture
def namespaces(slipway: Installation) -> Iterator[tuple[str, str]]:
    """Of the honest tenant and of the stranger; the operator may call hooks in both."""
    slipway.until_well()
    names = (slipway.new_namespace(), slipway.new_namespace())
    try:
        slipway.upgrade(operator={"outbound": {"allowedHosts": [f"*.{name}.svc" for name in names]}})
        slipway.until_well()
        yield names
    finally:
        for name in names:
            slipway.drop_namespace(name)
        slipway.upgrade()
        slipway.until_well()


@pytest.fixture
def keys(slipway: Installation) -> Iterator[dict[str, str]]:
    """Tenant → key, the honest one first. With them the gateways refuse requests without a key."""
    secret = slipway.kube.api.find(f"api/v1/namespaces/{SYSTEM}/secrets/{RELEASE}-key-pepper")
    pepper = base64.urlsafe_b64decode(base64.b64decode(secret["data"]["pepper"]))
    suffix = secrets.token_hex(3)
    made = {f"{name}-{suffix}": api_keys.make_key(secrets.token_bytes(api_keys.ENTROPY_BYTES))
            for name in ("honest", "stranger")}  # fmt: skip
    specs = (SPEC, {"models": ["*"]})
    try:
        for (name, key), spec in zip(made.items(), specs, strict=True):
            known = {"id": api_keys.id_of(key), "hash": api_keys.hash_key(key, pepper)}
            slipway.kube.apply({"apiVersion": "slipway.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": name},
                                "spec": spec | {"auth": {"keys": [known]}}}, "default")  # fmt: skip
        for name in made:
            until(partial(_accepted, slipway, name), f"the gateways know {name}", 60)
        yield made
    finally:
        slipway.kube.kubectl("delete", "tenants", *made, "--ignore-not-found")


def _accepted(slipway: Installation, tenant: str) -> bool:
    status = slipway.kube.api.find(f"{GROUP_PATH}/tenants/{tenant}").get("status") or {}
    return any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())


@pytest.fixture
def honest(slipway: Installation, namespaces: tuple[str, str], keys: dict[str, str]) -> Iterator[Honest]:
    namespace, tenant = namespaces[0], next(iter(keys))
    for manifest in (SHARE, program()):
        slipway.kube.apply(manifest, namespace)
    receive_hooks(slipway.kube, namespace, slipway.images.server, 0)
    chat, sleeper = Deployment(slipway.kube, namespace), Deployment(slipway.kube, namespace, "sleeper")
    hooks = [{"name": kind, "type": kind, "url": hooks_url(namespace)} for kind in TYPES]
    canary = {"steps": [{"setWeight": 50}], "scaleDownDelaySeconds": 1}
    chat.create("v1", strategy={"canary": canary, "hooks": hooks})
    sleeper.create("v1", autoscaling=SCALED)
    headers = {"Authorization": f"Bearer {keys[tenant]}"}
    made = Honest(tenant, keys[tenant], slipway.url, chat, sleeper, Flow(slipway.url, chat.model, SHAPE, headers))
    chat.until_stable("v1")
    sleeper.until("it serves once", lambda status: bool(status.get("stableRevision")), START_S)
    yield made
    made.flow.stop()


@pytest.fixture
def stranger(
    slipway: Installation, namespaces: tuple[str, str], keys: dict[str, str], honest: Honest
) -> Iterator[HostileEngine]:
    made = HostileEngine(slipway.kube, namespaces[1], slipway.images.server, list(keys.values())[1])
    made.settle()
    yield made


# --- the run ----------------------------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.attack_class(15, 18)
@pytest.mark.finding("F3", "F4", "F7", "F8", "F9")
@pytest.mark.timeout(8 * START_S + 2 * ROUNDS * WINDOW_S + 2 * PROMOTED_S, func_only=True)
def test_engines_and_hooks_of_a_hostile_namespace_change_nothing_for_another_tenant(
    slipway: Installation, honest: Honest, stranger: HostileEngine
) -> None:
    seen = Seen(gateways=_gateways(slipway))
    honest.flow.start().wait_for(lambda ended: len(ended) >= BEFORE, 60, "answers of the honest tenant's model")
    steady(honest, stranger, seen)
    woken(slipway, honest, stranger, seen)
    rollouts(slipway, honest, stranger, seen)
    seen.all = honest.flow.stop()
    indebted(honest, stranger, seen)
    made = report_of(slipway, honest, stranger, seen)
    write(made, ROOT)
    print(table(made))
    assert all(one["ok"] for one in made["bars"]), [one for one in made["bars"] if not one["ok"]]


def steady(honest: Honest, stranger: HostileEngine, seen: Seen) -> None:
    """Reports, streams and held requests, in windows by turns."""
    windows = by_turns()

    def send() -> None:
        seen.sent.append(stranger.attack(windows[BESIDE], STEADY))

    def ask() -> None:
        for begins, ends in windows[BESIDE]:
            time.sleep(max(0.0, begins - time.time()))
            while time.time() < ends:
                seen.lies += honest.ask(stranger.deployment(LIES).model, stream=len(seen.lies) % 2 == 1)
                time.sleep(1.0)

    with Meanwhile(send, ask):
        time.sleep(max(0.0, windows[BESIDE][-1][1] + 2 - time.time()))
    ended = honest.flow.seen()
    seen.requests = {kind: within(ended, found) for kind, found in windows.items()}
    print(*(row(kind, found) for kind, found in seen.requests.items()), *seen.sent, sep="\n")


def woken(slipway: Installation, honest: Honest, stranger: HostileEngine, seen: Seen) -> None:
    """A request to the honest tenant's sleeping model, alone and while the stranger's requests stay."""
    until_asleep(honest.sleeper)
    seen.woken[ALONE] = honest.ask(honest.sleeper.model)[0]
    until_asleep(honest.sleeper)
    now = time.time()

    def send() -> None:
        seen.sent.append(stranger.attack([(now, now + FLOOD_S)], FLOOD))

    with Meanwhile(send):
        seen.held = until(lambda: _held(slipway), "the stranger's requests stay at each gateway", FLOOD_S / 2,
                          holds=lambda held: min(held) >= LEAST_HELD)  # fmt: skip
        seen.woken[BESIDE] = honest.ask(honest.sleeper.model)[0]


def rollouts(slipway: Installation, honest: Honest, stranger: HostileEngine, seen: Seen) -> None:
    """The honest tenant's model is rolled out under hooks, alone and while the stranger's hooks hang."""
    promoted(honest.chat, "v2", ALONE, seen)
    stranger.hang_hooks()
    stranger.release_hooked("v2")
    seen.waiting = until(stranger.waiting_gates, "the stranger's gates hang", START_S, holds=lambda n: n == HOOKED)
    over = threading.Event()

    def release() -> None:
        for number in itertools.count(3):
            stranger.release_hooked(f"v{number}")
            if over.wait(CHANGES_S):
                return

    with Meanwhile(release):
        try:
            until(lambda: _dropped(slipway), "the stranger's notices are more than an operator has at once", START_S)
            promoted(honest.chat, "v2-again", BESIDE, seen)
        finally:
            over.set()
    seen.hanging, seen.dropped = stranger.hanging(), _dropped(slipway)


def promoted(chat: Deployment, version: str, kind: str, seen: Seen) -> None:
    """Release it; notes the seconds until it has all traffic, and the calls of hooks until the last one."""
    began, before = time.monotonic(), len(hook_calls(chat.kube, chat.namespace))
    chat.release(version)
    chat.until_stable(version, PROMOTED_S)
    seen.promoted[kind] = round(time.monotonic() - began, 1)

    def calls() -> list[Json]:
        return hook_calls(chat.kube, chat.namespace)[before:]

    seen.hooks[kind] = until(calls, "the hook after the rollout is called", 60,
                             holds=lambda found: any(one["type"] == "post-rollout" for one in found))  # fmt: skip


def indebted(honest: Honest, stranger: HostileEngine, seen: Seen) -> None:
    """After the worst reports: the next request over the same connection, and one when it may be sent again."""
    models = [stranger.deployment(LIES).model] * len(USAGES)
    *lies, after = honest.ask(*models, honest.chat.model, max_tokens=None)
    seen.lies += [one for one in lies if one.status == 200]
    time.sleep(min(float(after.headers.get("retry-after", 0)), 3 * BURST_S))
    seen.after = [after, *honest.ask(honest.chat.model)]


class Meanwhile:
    """Runs each of these in a thread until the end of the block, and raises what they raised."""

    def __init__(self, *works: Callable[[], None]) -> None:
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._guard, args=(work,), daemon=True) for work in works]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join(FLOOD_S + 90)
        if self._errors:
            raise self._errors[0]

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._errors.append(error)


# --- the report -------------------------------------------------------------------------------------------------------


def report_of(slipway: Installation, honest: Honest, stranger: HostileEngine, seen: Seen) -> Json:
    """For build/reports/hostile-engine.json."""
    alone, beside = rows = [row(kind, found) for kind, found in seen.requests.items()]
    troubles = [item for item in seen.all if item.trouble]
    woke = {kind: {"status": one.status, "seconds": round(one.seconds, 2)} for kind, one in seen.woken.items()}
    shown = stranger.conditions().get(IMPLAUSIBLE)
    bars = [
        none("failed requests of the honest tenant to its own model", len(troubles)),
        *comparison(alone, beside, SHAPE.rate),
        *_bars_of_requests(seen),
        *_bars_of_bill(slipway, honest, stranger, seen),
        *_bars_of_limits(seen),
        *_bars_of_hooks(seen),
        bar(f"{IMPLAUSIBLE} of the stranger's ModelDeployment", shown == "True", "True", shown == "True"),
        *_bars_of_gateways(slipway, seen),
    ]
    calls = {kind: [f"{one['type']} {one['event']} {one['at'] - found[0]['at']:.1f} s" for one in found]
             for kind, found in seen.hooks.items()}  # fmt: skip
    all_rows = [*rows, {"woken": woke, "held": seen.held}, {"promoted_after_s": seen.promoted, "calls": calls},
                {"sent": seen.sent}, {"troubles": [str(one)[:300] for one in troubles[:5]]}]  # fmt: skip
    return report("hostile-engine", all_rows, bars)


def _bars_of_requests(seen: Seen) -> list[Bar]:
    """Of the requests to sleeping models; and whether the stranger did what it is measured for."""
    alone, beside = seen.woken[ALONE], seen.woken[BESIDE]
    limit_s = 1.5 * alone.seconds + SLACK_S
    steady = seen.sent[0]
    streams = steady.get("streams", {})
    return [
        bar("status of a request to a sleeping model beside held ones", beside.status, "200", beside.status == 200),
        bar("its seconds", beside.seconds, f"<= {limit_s:.1f}", beside.seconds <= limit_s),
        bar("requests of the stranger that a gateway held", min(seen.held), f">= {LEAST_HELD}",
            min(seen.held) >= LEAST_HELD),
        bar("answers of the liar to the honest tenant", len(seen.lies), f">= {5 * ROUNDS}",
            len(seen.lies) >= 5 * ROUNDS and all(one.status == 200 for one in seen.lies)),
        bar("answers of the liar to the stranger", steady.get("lies", {}).get("200", 0), f">= {5 * ROUNDS}",
            steady.get("lies", {}).get("200", 0) >= 5 * ROUNDS),
        bar("streams of comments", streams.get("200", 0), f">= {STEADY.streams * ROUNDS}",
            streams.get("200", 0) >= STEADY.streams * ROUNDS),
    ]  # fmt: skip


def _bars_of_bill(slipway: Installation, honest: Honest, stranger: HostileEngine, seen: Seen) -> list[Bar]:
    """The ledgers beside what responses named, and beside what requests to the liar can cause."""
    own = [item.usage for item in seen.all if item.usage]
    for one in (*seen.woken.values(), *seen.after):
        if one.status == 200:
            usage = json.loads(one.body)["usage"]
            own.append((usage["prompt_tokens"], usage["completion_tokens"]))
    named = (len(own), sum(read for read, _ in own), sum(written for _, written in own))
    models = (honest.chat.model, honest.sleeper.model)
    time.sleep(WRITTEN_S)
    billed = _billed(slipway, honest.tenant, models)
    most = [_most(one) for one in seen.lies]
    bound = (sum(one.input_tokens for one in most), sum(one.output_tokens for one in most))
    added = _billed(slipway, honest.tenant, (stranger.deployment(LIES).model,))
    cost = (named[1] + named[2]) * PRICE * 1000
    return [
        *(bar(f"{what} of the honest tenant's own models in the ledgers", found, f"= {wanted}", found == wanted)
          for what, found, wanted in zip(("requests", "input tokens", "output tokens"), billed, named, strict=False)),
        bar("their cost in billionths", billed[3], f"= {cost}", billed[3] == cost),
        bar("requests to the liar in the ledgers", added[0], f"= {len(most)}", added[0] == len(most)),
        *(bar(f"{what} that the liar adds", found, f"<= {limit}, the bound of these requests", found <= limit)
          for what, found, limit in zip(("input tokens", "output tokens"), added[1:3], bound, strict=True)),
        bar("the cost that the liar adds, in the currency", added[3] / 1e9, f"<= {sum(bound) * PRICE / 1e6:.2f}",
            added[3] <= sum(bound) * PRICE * 1000),
    ]  # fmt: skip


def _most(one: Answered) -> Usage:
    """The largest usage that the gateway may charge for a request (quotas/bounds.py)."""
    limit = json.loads(one.sent).get("max_tokens")
    return UsageBound(one.sent, (limit,)).clamp(Usage(LARGEST, LARGEST, 0), len(one.body))


def _billed(slipway: Installation, tenant: str, models: tuple[str, ...]) -> tuple[int, int, int, int]:
    """Requests, input tokens, output tokens and billionths of the currency, in the ledgers of all gateways."""
    hour = int(time.time() // 3600)
    query = f"internal/usage?first={hour - 2}&end={hour + 1}&tenant={tenant}"
    answers = {name: json.loads(slipway.admin_page(name, query)) for name in slipway.ready("gateway")}
    rows = [one for answer in answers.values() for one in answer["rows"] if one["model"] in models]
    requests, read, written, cost = (
        sum(int(one[name]) for one in rows) for name in ("requests", "input_tokens", "output_tokens", "cost_nano")
    )
    return requests, read, written, cost


def _bars_of_limits(seen: Seen) -> list[Bar]:
    """A bucket owes at most what fills it once, so a request is taken again after one full bucket has flowed back."""
    first, last = seen.after
    most_s = BURST_S + 2  # what the request itself takes is added, and each part of it is rounded up
    wait_s = float(first.headers.get("retry-after", 0))
    return [
        bar("status of the next request after the worst report", first.status, "429", first.status == 429),
        bar("its retry-after in seconds", wait_s, f"1 to {most_s}, a full bucket", 1 <= wait_s <= most_s),
        bar("status of a request after that time", last.status, "200", last.status == 200),
        *(bar(f"x-ratelimit-remaining-{what} then", int(last.headers.get(f"x-ratelimit-remaining-{what}", -1)), ">= 0",
              int(last.headers.get(f"x-ratelimit-remaining-{what}", -1)) >= 0) for what in ("requests", "tokens")),
    ]  # fmt: skip


def _bars_of_hooks(seen: Seen) -> list[Bar]:
    """Of the honest tenant's rollout: promoted, all its hooks called, as soon as alone."""
    limit_s = 1.5 * seen.promoted[ALONE] + SLACK_S
    called = {kind: {one["type"] for one in found} for kind, found in seen.hooks.items()}
    events = {kind: {one["event"] for one in found if one["event"]} for kind, found in seen.hooks.items()}
    late = {kind: max(_delay_s(one) for one in found) for kind, found in seen.hooks.items()}
    return [
        bar("types of hooks called alone", len(called[ALONE]), f"{len(TYPES)}", called[ALONE] == set(TYPES)),
        bar("types of hooks called beside hanging ones", len(called[BESIDE]), f"{len(TYPES)}",
            called[BESIDE] == set(TYPES)),
        none("Events of the rollout alone of which none was noticed beside", len(events[ALONE] - events[BESIDE])),
        bar("seconds to promotion beside hanging hooks", seen.promoted[BESIDE], f"<= {limit_s:.1f}",
            seen.promoted[BESIDE] <= limit_s),
        # Times of calls are whole seconds.
        bar("longest delay of a hook in seconds", late[BESIDE], f"<= {late[ALONE] + 2:.1f}",
            late[BESIDE] <= late[ALONE] + 2),
        bar("hanging calls at the stranger's receiver", seen.hanging, ">= 8", seen.hanging >= 8),
        bar("dropped notices of Events", seen.dropped, ">= 1", seen.dropped >= 1),
        bar("rollouts of the stranger at a hanging gate", seen.waiting, f"{HOOKED}", seen.waiting == HOOKED),
    ]  # fmt: skip


def _delay_s(call: Json) -> float:
    """From the moment at which the operator had the call to make until it arrived."""
    called = time.strptime(call["timestamp"], "%Y-%m-%dT%H:%M:%SZ")
    return round(max(0.0, float(call["at"]) - calendar.timegm(called)), 2)


def _bars_of_gateways(slipway: Installation, seen: Seen) -> list[Bar]:
    ready = [slipway.admin_page(name, "readyz") for name in slipway.ready("gateway")]
    now = _gateways(slipway)
    restarted = sum(now.get(name) != found for name, found in seen.gateways.items())
    return [
        none("gateway pods that restarted or left", restarted),
        bar("gateways whose /readyz is ok", len(ready), f"{len(seen.gateways)}", len(ready) == len(seen.gateways)),
    ]


def _gateways(slipway: Installation) -> dict[str, tuple[str, int]]:
    """Name → uid and restarts."""
    found: dict[str, tuple[str, int]] = {}
    for pod in slipway.pods("gateway"):
        restarts = sum(int(one["restartCount"]) for one in pod["status"].get("containerStatuses", ()))
        found[pod["metadata"]["name"]] = (pod["metadata"]["uid"], restarts)
    return found


def _dropped(slipway: Installation) -> int:
    """Notices of Events that the operator dropped, because it had too many of their namespace."""
    [name] = slipway.ready("operator")
    page = slipway.kube.api.text(f"api/v1/namespaces/{SYSTEM}/pods/{name}:8001/proxy/metrics")
    lines = [line for line in page.splitlines() if line.startswith("slipway_operator_hook_calls_total{")]
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if 'outcome="dropped"' in line)


def _held(slipway: Installation) -> list[int]:
    """Requests that wait for an endpoint, of each gateway."""
    pages = [slipway.admin_page(name, "metrics") for name in slipway.ready("gateway")]
    lines = [line for page in pages for line in page.splitlines() if line.startswith("slipway_gateway_held_requests ")]
    return [int(float(line.rsplit(" ", 1)[1])) for line in lines]
