"""Random requests of a tenant at several gateways, and what model servers did for them."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import aiohttp
from aiohttp import web

from slipway_contracts.headers import PROMPT_TOKENS
from slipway_gateway.identity.tenants import KnownTenant
from slipway_gateway.quotas.estimate import BYTES_PER_TOKEN
from slipway_gateway.quotas.policy import Budget, Policy
from slipway_gateway.quotas.prices import Price, micro
from slipway_gateway.quotas.tenant import INPUT, OUTPUT, REQUESTS, Limits, Share
from slipway_gateway.quotas.usage import Usage
from tests.gateway import tenants
from tests.gateway.harness import Gateway

PRICE = Price("*", input_micro=micro("1"), output_micro=micro("2"))
PARTS = 4  # in which a stream comes
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
CHOICE = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
REFUSALS = ("rate_limit_exceeded", "insufficient_quota")


class Ending(StrEnum):
    """How a request goes."""

    WHOLE = "whole"
    ERROR = "error"
    STREAM = "stream"
    UNREPORTED = "stream without usage"
    LEFT = "client leaves the stream"
    LEFT_BEFORE = "client leaves before the response"


@dataclass(slots=True)
class Plan:
    """One request. Tokens are those that its server counts; `after_s`: when it is sent, since the one before it."""

    ending: Ending
    gateway: int
    after_s: float
    busy_s: float
    input_tokens: int
    output_tokens: int
    max_tokens: int | None
    body: bytes = b""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    is_running: bool = False

    def estimate(self, default_output: int) -> Usage:
        """What it reserves, as docs/tenants.md has it."""
        output = default_output if self.max_tokens is None else min(self.max_tokens, default_output)
        return Usage(-(-len(self.body) // BYTES_PER_TOKEN), output)


@dataclass
class Run:
    """The requests of one tenant, and what came of them."""

    tenant: KnownTenant
    key: str
    plans: Sequence[Plan]
    lanes: int  # in each, one request follows the other
    use: Counter[str] = field(default_factory=Counter)  # of limits, as servers count it
    most_beyond: Counter[str] = field(default_factory=Counter)  # what one request used beyond its reservation, at most
    billed: Counter[str] = field(default_factory=Counter)  # what the ledger must have
    spent_nano: int = 0
    beyond_nano: int = 0
    largest_nano: int = 0
    running: int = 0
    most_running: int = 0
    began_s: float = 0.0
    ended_s: float = 0.0
    sent_s: list[float] = field(default_factory=list)  # of those that were taken
    settled_s: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    taken: int = 0

    @property
    def limits(self) -> Limits:
        return self.tenant.policy.limits

    def begin(self, plan: Plan) -> None:
        """Its server has it."""
        plan.is_running = True
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        plan.reached.set()

    def end(self, plan: Plan) -> None:
        self.running -= plan.is_running
        plan.is_running = False

    def count(self, plan: Plan) -> None:
        """All that its server does for it."""
        estimate = plan.estimate(self.tenant.policy.output_tokens)
        actual = {REQUESTS: 1, INPUT: plan.input_tokens, OUTPUT: plan.output_tokens}
        if plan.ending is Ending.ERROR:
            actual = {REQUESTS: 1, INPUT: 0, OUTPUT: 0}
        reserved = {REQUESTS: 1, INPUT: estimate.input_tokens, OUTPUT: estimate.output_tokens}
        for name, rate in self.limits.rates().items():
            held = min(reserved[name], rate.burst)
            used = min(actual[name], held) if plan.ending is Ending.LEFT_BEFORE else actual[name]
            self.use[name] += used
            self.most_beyond[name] = max(self.most_beyond[name], used - held)
        expected_nano = PRICE.cost_nano(estimate)
        self.largest_nano = max(self.largest_nano, expected_nano)
        if plan.ending not in (Ending.ERROR, Ending.LEFT_BEFORE):
            self.billed.update({"requests": 1, "input_tokens": plan.input_tokens, "output_tokens": plan.output_tokens})
            cost_nano = PRICE.cost_nano(Usage(plan.input_tokens, plan.output_tokens))
            self.spent_nano += cost_nano
            self.beyond_nano += max(0, cost_nano - expected_nano)

    def most_in_flight(self) -> int:
        """From the moment in which a client sends a request until it is settled at the server of limits."""
        # Of one moment, those that begin come first.
        moments = sorted([(at_s, 0) for at_s in self.sent_s] + [(at_s, 1) for at_s in self.settled_s])
        now = most = 0
        for _, is_end in moments:
            now += -1 if is_end else 1
            most = max(most, now)
        return most


def draw(seed: int, *, beyond: bool, budgets: bool) -> Run:
    """`beyond`: requests may use more than they reserve."""
    chance = random.Random(seed)
    limits = Limits(
        requests_per_minute=chance.choice([0, 0, 12, 60, 600]),
        input_tokens_per_minute=chance.choice([0, 0, 600, 3000]),
        output_tokens_per_minute=chance.choice([0, 0, 300, 3000]),
        concurrency=chance.choice([0, 0, 1, 4, 12]),
        burst_s=chance.choice([5.0, 20.0, 60.0]),
    )
    budget = Budget(day_nano=PRICE.cost_nano(Usage(chance.choice([1, 500, 800])))) if budgets else Budget()
    default_output = chance.choice([8, 64])
    key = tenants.make_key(f"run{seed:06}")
    kind = chance.choice(["limits", "budget", "both"]) if budgets else "limits"
    limits, budget = limits if kind != "budget" else Limits(), budget if kind != "limits" else Budget()
    policy = Policy(limits, (PRICE,), budget, default_output)
    tenant = replace(tenants.tenant(f"run-{seed}", key), policy=policy)
    plans = [_plan(chance, chance.randrange(2)) for _ in range(chance.randint(8, 40))]
    for number, plan in enumerate(plans):
        plan.body = _body(seed, number, plan, "x" * chance.randint(0, 200))
        if not beyond:
            estimate = plan.estimate(default_output)
            plan.input_tokens = min(plan.input_tokens, estimate.input_tokens, *_bursts(limits, INPUT))
            plan.output_tokens = min(plan.output_tokens, estimate.output_tokens, *_bursts(limits, OUTPUT))
    return Run(tenant, key, plans, lanes=chance.choice([1, 2, 5, len(plans)]))


def _plan(chance: random.Random, gateway: int) -> Plan:
    ending = chance.choices(list(Ending), weights=[5, 1, 3, 2, 2, 1])[0]
    after_s, busy_s = chance.choice([0.0, 0.0, 0.01, 0.05]), chance.choice([0.0, 0.005, 0.03])
    limit = chance.choice([None, 1, 20, 100])
    output = chance.randint(1, 100 if limit is None else limit)  # without an event no response begins
    return Plan(ending, gateway, after_s, busy_s, chance.randint(1, 120), output, limit)


def _bursts(limits: Limits, name: str) -> list[int]:
    """Of one of two gateways, which may have to count alone: no more can be reserved."""
    rate = limits.part(Share(2)).rates().get(name)
    return [rate.burst] if rate else []


def _body(seed: int, number: int, plan: Plan, text: str) -> bytes:
    body: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": text}], "run": [seed, number]}
    if plan.max_tokens is not None:
        body["max_tokens"] = plan.max_tokens
    if plan.ending in (Ending.STREAM, Ending.UNREPORTED, Ending.LEFT):
        body["stream"] = True
    return json.dumps(body).encode()


# -- its server


class ModelServer:
    """Answers as planned. `runs`: by their seeds."""

    def __init__(self, runs: Mapping[int, Run]) -> None:
        self._runs = runs

    async def answer(self, request: web.Request) -> web.StreamResponse:
        seed, number = json.loads(await request.read())["run"]
        run = self._runs[seed]
        plan = run.plans[number]
        run.count(plan)
        run.begin(plan)
        if plan.ending is Ending.LEFT_BEFORE:
            await asyncio.Event().wait()
        await asyncio.sleep(plan.busy_s)
        usage = {"prompt_tokens": plan.input_tokens, "completion_tokens": plan.output_tokens}
        if plan.ending is Ending.WHOLE:
            run.end(plan)
            return web.json_response({"choices": [CHOICE], "usage": usage})
        if plan.ending is Ending.ERROR:
            run.end(plan)
            return web.json_response({"error": {"message": "no"}}, status=400)
        return await self._stream(request, run, plan, usage)

    async def _stream(self, request: web.Request, run: Run, plan: Plan, usage: Mapping[str, int]) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", PROMPT_TOKENS: str(plan.input_tokens)}
        out = web.StreamResponse(headers=headers)
        await out.prepare(request)
        left = plan.output_tokens
        for part in range(PARTS, 0, -1):
            count = left // part
            left -= count
            if count:
                await out.write(EVENT * count)
                await asyncio.sleep(plan.busy_s / PARTS)
        if plan.ending is Ending.LEFT:
            await asyncio.Event().wait()
        run.end(plan)
        last = b"data: [DONE]\n\n"
        if plan.ending is Ending.STREAM:
            last = b'data: {"choices":[],"usage":%s}\n\n' % json.dumps(usage).encode() + last
        await out.write(last)
        return out


# -- its clients


async def play(run: Run, gateways: Sequence[Gateway], session: aiohttp.ClientSession) -> None:
    """Sends all of it. Each request ends as planned, or is refused by a limit or the budget."""
    clock = asyncio.get_running_loop().time
    run.began_s = clock()
    await asyncio.gather(*(_play_lane(run, lane, gateways, session) for lane in range(run.lanes)))
    run.ended_s = clock()


async def _play_lane(run: Run, lane: int, gateways: Sequence[Gateway], session: aiohttp.ClientSession) -> None:
    for plan in run.plans[lane :: run.lanes]:
        await asyncio.sleep(plan.after_s)
        await _send(run, plan, gateways[plan.gateway], session)


async def _send(run: Run, plan: Plan, gateway: Gateway, session: aiohttp.ClientSession) -> None:
    sent_s = asyncio.get_running_loop().time()
    task = asyncio.create_task(_request(run, plan, gateway, session))
    if plan.ending is Ending.LEFT_BEFORE:
        reached = asyncio.create_task(plan.reached.wait())
        await asyncio.wait((task, reached), return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        run.end(plan)
        task.cancel()
    (refusal,) = await asyncio.gather(task, return_exceptions=plan.ending is Ending.LEFT_BEFORE)
    if isinstance(refusal, Exception):
        raise refusal
    if isinstance(refusal, str) and refusal:
        run.refused[refusal] += 1
        assert not plan.reached.is_set(), "a refused request reaches no server"
    else:
        run.taken += 1
        run.sent_s.append(sent_s)
        assert plan.reached.is_set()


async def _request(run: Run, plan: Plan, gateway: Gateway, session: aiohttp.ClientSession) -> str:
    """Empty, or by what it was refused."""
    headers = tenants.bearer(run.key) | {"Content-Type": "application/json"}
    async with session.post(gateway.url + "/v1/chat/completions", data=plan.body, headers=headers) as answer:
        if answer.status == 429:
            code = str((await answer.json())["error"]["code"])
            assert code in REFUSALS, code
            return code
        assert answer.status == (400 if plan.ending is Ending.ERROR else 200), (answer.status, await answer.text())
        if plan.ending is not Ending.LEFT:
            await answer.read()
            return ""
        came = b""
        while came.count(b"data:") < plan.output_tokens:
            came += await answer.content.readany()
        run.end(plan)
        answer.close()
        return ""
