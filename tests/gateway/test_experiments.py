"""Experiments at a gateway: arms of requests, exposures in each kind of log, and outcomes by feedback."""

import asyncio
import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from slipway_contracts.api.reading import UnreadableObject
from slipway_contracts.experiments.assignment import AssignedArm, Assignment, place, unit_key
from slipway_contracts.experiments.spec import HOLDOUT
from slipway_contracts.route_table import HeaderMatch, HeaderRoute
from slipway_gateway.experiments.exposures import MAX_WAITING, Experiments, ExposureTerms
from slipway_gateway.experiments.sinks.http import HttpSink
from slipway_gateway.experiments.sinks.kafka import KafkaSink
from slipway_gateway.fast_lane.table import compile_table
from slipway_gateway.feedback.tokens import Statement
from slipway_gateway.routing.experiments import ChosenArm, PublishedExperiment, parse_experiment
from slipway_gateway.routing.last_table import decode, encode, published_experiments
from slipway_gateway.routing.public_names import PublicRoute, owner_of
from slipway_gateway.routing.table import RouteTable, build
from slipway_gateway.serving.experiments import ArmOfRequest
from slipway_gateway.sharing.counters import CountersAway
from slipway_gateway.telemetry.metrics import GatewayMetrics, RequestRecord
from slipway_gateway.telemetry.rotated_file import UnwrittenLines
from slipway_gateway.wire.request_fields import RequestFields
from slipway_process.network.listed_hosts import ListedHosts
from testkit.until import until_async

from .harness import Gateway, answering, gateway, upstream
from .tenants import PEPPER, bearer, make_key, tenant
from .test_feedback import FEEDBACK, write_keys
from .test_model_routes import deployment, model_server, rest, rule, spec

NOW = datetime.now(UTC).replace(microsecond=0)
CONTROL, SMALL = "prod/chat", "prod/small"
BODY: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


def experiment(name: str = "prod/size", /, *, created: str = "2026-01-01T00:00:00Z", **fields: Any) -> Any:
    arms = (AssignedArm("control", 50, CONTROL), AssignedArm("small", 50, SMALL))
    made = Assignment(
        1, 1, NOW - timedelta(days=1), f"ModelDeployment/{CONTROL}", (), "User", None, f"{name}/", 0, 100, 0, arms,
        "control", ("helpful", "correct"),
    )  # fmt: skip
    return PublishedExperiment(name, f"uid-{name}", created, replace(made, **fields))


def table(*experiments: PublishedExperiment, urls: tuple[str, str] = ("", ""), routes: Any = ()) -> RouteTable:
    listed = [deployment(CONTROL, urls[0]), deployment(SMALL, urls[1])]
    owners = {route.model: route.name for route, _ in listed}
    owners |= {name: owner_of(route.name) for route in routes for name in route.names}
    deployments = [replace(route, digest="0" * 64) for route, _ in listed]
    ends = [one for _, one in listed]
    return build(deployments, ends, owners, model_routes=routes, experiments=experiments)


@contextlib.asynccontextmanager
async def running(*experiments: PublishedExperiment, routes: Any = (), **settings: Any) -> AsyncIterator[Gateway]:
    async with upstream(model_server) as one, upstream(model_server) as two, gateway(**settings) as gate:
        gate.balancer.publish(table(*experiments, urls=(one.url, two.url), routes=routes))
        yield gate


async def reached(gate: Gateway, user: Any = "", **options: Any) -> str:
    """The model that got a request."""
    body = BODY | ({"user": user} if user else {}) | options.pop("body", {})
    async with await gate.post(body, **options) as answer:
        assert answer.status == 200, await answer.text()
        return str((await answer.json())["model"])


def arm_of(made: PublishedExperiment, user: str, tenant_name: str = "") -> str:
    return place(made.name, made.assignment, unit_key(tenant_name, user)).name


def user_in(arm: str, made: PublishedExperiment) -> str:
    return next(f"user-{n}" for n in range(1000) if arm_of(made, f"user-{n}") == arm)


async def report(gate: Gateway, name: str = "prod/size") -> Any:
    async with gate.client.get(f"{gate.admin_url}/internal/experiments") as answer:
        return (await answer.json())["experiments"][name]


# --- the way of a request


async def test_a_unit_gets_its_arm_and_a_request_without_one_takes_the_ordinary_way(tmp_path: Path) -> None:
    made = experiment()
    log = tmp_path / "exposures"
    async with running(made, exposure_log=str(log), tenant_salt="s") as gate:
        users = [f"user-{n}" for n in range(20)]
        for user in users * 2:
            assert await reached(gate, user) == {"control": "chat", "small": "small"}[arm_of(made, user)]
        assert await reached(gate) == "chat"
        seen = await report(gate)
        assert await reached(gate, users[0], body={"model": "prod/small"}) == "small", "it is an arm, and no subject"
    expected = Counter(arm_of(made, user) for user in users)
    assert {name: (arm["units"], arm["requests"]) for name, arm in seen["arms"].items()} == {
        name: (count, 2 * count) for name, count in expected.items()
    }
    assert seen["skipped"] == {"no_unit": 1}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == len(users) == len({line["id"] for line in lines}) == len({line["unit"] for line in lines})
    for line in lines:
        served = {"control": CONTROL, "small": SMALL}[line["arm"]]
        assert (line["deployment"], line["revision"]) == (served, f"r-{served.replace('/', '-')}")
        assert (line["experiment"], line["layer"], line["status"]) == ("prod/size", "prod/size", 200)
    assert "user-" not in log.read_text(), "no unit as the client sent it"


async def test_hold_outs_ranges_times_and_pauses() -> None:
    made = experiment(holdout=50, end=50)
    async with running(made) as gate:
        found = Counter()  # type: ignore[var-annotated]
        for n in range(30):
            await reached(gate, f"user-{n}")
            found[arm_of(made, f"user-{n}")] += 1
        arms = (await report(gate))["arms"]
        assert {name: arm["units"] for name, arm in arms.items()} == {
            name: count for name, count in found.items() if name
        }
        assert arms[HOLDOUT]["units"] > 5
        for stopped in (
            {"paused": True},
            {"end_time": NOW - timedelta(hours=1)},
            {"start_time": NOW + timedelta(hours=1)},
        ):
            stopping = experiment(**stopped)
            current = gate.balancer.published.current
            assert current is not None
            gate.balancer.publish(replace(current, experiments={stopping.name: stopping}))
            assert await reached(gate, user_in("small", stopping)) == "chat"


async def test_arms_follow_rules_of_a_model_route_and_keep_what_it_imposes() -> None:
    public = PublicRoute(
        "prod/gpt",
        spec(rule("tools", "chat", hasTools=True), rest("chat"), responseModel="Public", aliases=["other"]),
    )
    made = experiment(subject="ModelRoute/prod/gpt", rules=("rest",))
    small = user_in("small", made)
    tools = [{"type": "function", "function": {"name": "f"}}]
    async with running(made, routes=(public,)) as gate:
        for name in ("gpt", "other"):
            async with await gate.post(BODY | {"model": name, "user": small}) as answer:
                assert answer.headers["X-Slipway-Revision"] == "r-prod-small"
                assert answer.headers["X-Slipway-Route"] == "rest"
                assert (await answer.json())["model"] == name
        async with await gate.post(BODY | {"model": "gpt", "user": small, "tools": tools}) as answer:
            assert answer.headers["X-Slipway-Revision"] == "r-prod-chat", "its rule takes no part"
        assert await reached(gate, small) == "chat", "the deployment's own name is no subject"


async def test_the_oldest_experiment_with_an_arm_decides_and_the_others_do_not_count() -> None:
    young, old = experiment("prod/a", created="2026-02-01T00:00:00Z"), experiment("prod/z", end=50)
    async with running(young, old) as gate:
        users = [f"user-{n}" for n in range(30)]
        for user in users:
            arm = arm_of(old, user) or arm_of(young, user)
            assert await reached(gate, user) == {"control": "chat", "small": "small"}[arm]
        counted = [
            sum(arm["units"] for arm in (await report(gate, name))["arms"].values()) for name in ("prod/a", "prod/z")
        ]
    assert counted[1] == sum(bool(arm_of(old, user)) for user in users)
    assert sum(counted) == len(users)


async def test_a_stream_that_is_taken_up_continues_at_the_deployment_where_it_began() -> None:
    made = experiment()
    found = table(made)
    chat, small = found.routes[CONTROL], found.routes[SMALL]
    arm = ArmOfRequest(process(Lines()), found, None, RequestFields(), None)  # type: ignore[arg-type]
    assert arm.holder("chat", chat, "r-prod-small") is small
    assert arm.holder("chat", chat, "r-prod-chat") is chat is arm.holder("chat", chat, "r-gone")


async def test_an_arm_of_a_revision_and_requests_that_are_pinned() -> None:
    arms = (AssignedArm("control", 50, CONTROL), AssignedArm("new", 50, CONTROL, "v2"))
    made = experiment(arms=arms)
    user = next(f"user-{n}" for n in range(100) if arm_of(made, f"user-{n}") == "new")
    async with upstream(model_server) as one, upstream(model_server) as two, gateway() as gate:
        base, old = deployment(CONTROL, one.url)
        (backend,) = base.backends
        second = replace(backend, revision="r-two", weight=0, version="v2")
        pin = HeaderRoute("pin", backend.revision, (HeaderMatch("x-pin", "yes"),))
        route = replace(base, backends=(backend, second), header_routes=(pin,))
        newer = replace(old, revision="r-two", urls=(two.url,))
        gate.balancer.publish(build([route], [old, newer], {"chat": CONTROL}, experiments=(made,)))
        async with await gate.post(BODY | {"user": user}) as answer:
            assert answer.headers["X-Slipway-Revision"] == "r-two"
        async with await gate.post(BODY | {"user": user}, headers={"X-Pin": "yes"}) as answer:
            assert answer.headers["X-Slipway-Revision"] == backend.revision
        gate.balancer.publish(build([route], [old], {"chat": CONTROL}, experiments=(made,)))
        async with await gate.post(BODY | {"user": user}) as answer:
            assert answer.headers["X-Slipway-Revision"] == backend.revision
        seen = await report(gate)
    assert seen["skipped"] == {"pinned": 1}
    assert (seen["arms"]["new"]["requests"], seen["arms"]["new"]["elsewhere"]) == (2, 1)


async def test_a_fallback_out_of_an_arm_is_logged_as_such(tmp_path: Path) -> None:
    made, log = experiment(), tmp_path / "exposures"
    async with (
        upstream(model_server) as one,
        upstream(answering(503)) as broken,
        gateway(exposure_log=str(log), max_attempts=1) as gate,
    ):
        found = table(made, urls=(one.url, broken.url))
        routes = dict(found.routes) | {SMALL: replace(found.routes[SMALL], fallback=("chat",))}
        gate.balancer.publish(replace(found, routes=routes))
        assert await reached(gate, user_in("small", made)) == "chat"
    (line,) = map(json.loads, log.read_text().splitlines())
    assert (line["arm"], line["deployment"], line["elsewhere"]) == ("small", CONTROL, True)


async def test_units_of_two_tenants_are_apart_and_a_tenant_that_may_not_use_all_arms_takes_no_part() -> None:
    keys = [make_key(f"key00{n}") for n in range(3)]
    tenants = [
        tenant("a", keys[0]),
        tenant("b", keys[1]),
        tenant("c", keys[2], models=("chat",)),
    ]
    made = experiment()
    split = next(f"user-{n}" for n in range(100) if arm_of(made, f"user-{n}", "a") != arm_of(made, f"user-{n}", "b"))
    async with running(made, tenants=tenants, pepper=PEPPER) as gate:
        for name, key in zip("ab", keys, strict=False):
            expected = {"control": "chat", "small": "small"}[arm_of(made, split, name)]
            assert await reached(gate, split, headers=bearer(key)) == expected
        for n in range(10):
            assert await reached(gate, f"user-{n}", headers=bearer(keys[2])) == "chat"
        assert (await report(gate))["skipped"] == {"not_allowed": 10}


def test_an_experiment_is_followed_while_all_its_arms_are_there() -> None:
    assert table(experiment()).subjects
    gone = (AssignedArm("control", 50, CONTROL), AssignedArm("small", 50, "prod/gone"))
    assert not table(experiment(arms=gone)).subjects
    missing = (AssignedArm("control", 50, CONTROL), AssignedArm("small", 50, SMALL, "v9"))
    assert not table(experiment(arms=missing)).subjects


@pytest.mark.parametrize(
    "fields",
    [
        {"arms": [{"name": "a", "weight": 100, "deployment": CONTROL}]},
        {"arms": [{"name": n, "weight": w, "deployment": CONTROL} for n, w in (("a", 150), ("b", -50))]},
        {"arms": [{"name": n, "weight": 50, "deployment": "other/chat"} for n in "ab"]},
        {"subject": "ModelDeployment/other/chat"},
        {"arms": "none"},
    ],
)
def test_an_assignment_that_cannot_be_followed_is_refused(fields: dict[str, Any]) -> None:
    good = {
        "subject": f"ModelDeployment/{CONTROL}",
        "arms": [{"name": n, "weight": 50, "deployment": CONTROL} for n in "ab"],
    }
    obj = {"metadata": {"namespace": "prod", "name": "e"}, "status": {"assignment": good}}
    assert parse_experiment(obj) is not None
    assert parse_experiment(obj | {"status": {}}) is None
    with pytest.raises(UnreadableObject, match=r"status\.assignment"):
        parse_experiment(obj | {"status": {"assignment": good | fields}})


def test_experiments_survive_a_restart_without_the_api_server() -> None:
    stored = decode(encode(table(experiment()), 1.0))
    assert published_experiments(stored) == [experiment()]  # type: ignore[arg-type]


def test_the_fast_lane_leaves_names_of_experiments() -> None:
    compiled = {one.name: one.reason for one in compile_table(table(experiment()), lambda url: url)}
    assert compiled == {CONTROL: "experiment", SMALL: ""}


# --- once


class Clock:
    def __init__(self) -> None:
        self.now_s = NOW.timestamp()

    def __call__(self) -> float:
        return self.now_s


class Lines:
    """A log in memory."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def put(self, owner: str, line: bytes) -> None:
        self.lines.append(json.loads(line))

    async def close(self) -> None: ...


class Claims:
    """What Redis does for gateways."""

    def __init__(self) -> None:
        self.taken: set[bytes] = set()
        self.is_away = False

    async def claim(self, ids: Any, seconds: float) -> list[bool]:
        if self.is_away:
            raise CountersAway
        new = [id_ not in self.taken for id_ in ids]
        self.taken.update(ids)
        return new

    async def close(self) -> None: ...


def process(lines: Lines, claims: Claims | None = None, clock: Clock | None = None, **options: Any) -> Experiments:
    """The experiments of one gateway process."""
    terms, made = ExposureTerms("salt", 86400.0 * 30), table(experiment())
    found = Experiments(
        GatewayMetrics("test"), lambda: made, [lines], terms, claims=claims, clock=clock or Clock(), **options
    )
    return found


def end(found: Experiments, unit: str, arm: str = "small", owner: str = "tenant:a") -> None:
    record = RequestRecord("0" * 32, "r", 0.0, revision="r-1", owner=owner)
    record.end("ok", 200)
    found.ended(ChosenArm(experiment(), arm, unit, SMALL), record, SMALL)


def units(found: Experiments, arm: str = "small") -> int:
    return found.report("i").experiments["prod/size"].arms[arm].units


def test_a_unit_is_logged_once_in_a_window_and_again_with_the_same_id_after_a_restart() -> None:
    lines, clock = Lines(), Clock()
    found = process(lines, clock=clock)
    for _ in range(3):
        end(found, "u1")
    end(found, "u2")
    assert len(lines.lines) == 2 == units(found)
    after = process(lines, clock=clock)
    end(after, "u1")
    assert len(lines.lines) == 3 and lines.lines[2]["id"] == lines.lines[0]["id"]
    clock.now_s += 86400 * 40
    end(after, "u1")
    assert len({line["id"] for line in lines.lines}) == 3, "another window"
    assert units(after) == 1, "counts have each unit once"


async def test_gateways_with_redis_log_a_unit_once_together_and_count_none_that_may_be_counted() -> None:
    lines, claims = Lines(), Claims()
    gates = [process(lines, claims) for _ in range(3)]
    for gate in gates:
        for n in range(50):
            end(gate, f"u{n}")
        await gate.close()
    assert len(lines.lines) == 50 == sum(units(gate) for gate in gates)
    claims.is_away = True
    end(gates[0], "new")
    await gates[0].close()
    assert len(lines.lines) == 51 and sum(units(gate) for gate in gates) == 50
    later = process(lines, claims)
    claims.is_away = False
    end(later, "u1")
    await later.close()
    assert len(lines.lines) == 51, "a restart logs no unit again"


async def test_exposures_whose_claim_is_cut_off_by_the_end_of_the_process_are_logged() -> None:
    lines, claims, begun = Lines(), Claims(), asyncio.Event()

    async def claim(ids: Any, seconds: float) -> list[bool]:
        claims.taken.update(ids)  # Redis has them, and its answer does not come
        begun.set()
        return await asyncio.Future()

    claims.claim = claim  # type: ignore[method-assign]
    found = process(lines, claims)
    task = asyncio.create_task(found.run())
    end(found, "u")
    await begun.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [line["arm"] for line in lines.lines] == ["small"]


def test_a_tenant_with_many_units_makes_no_other_one_forget() -> None:
    lines = Lines()
    found = process(lines, max_units=100)
    for n in range(10):
        end(found, f"mine-{n}", owner="tenant:a")
    for n in range(500):
        end(found, f"flood-{n}", owner="tenant:b")
    for n in range(10):
        end(found, f"mine-{n}", owner="tenant:a")
    assert units(found) == 510
    assert found.report("i").experiments["prod/size"].forgotten == 410


async def test_units_of_one_tenant_that_wait_for_redis_leave_room_for_others() -> None:
    lines, claims = Lines(), Claims()
    found = process(lines, claims)
    end(found, "mine", owner="tenant:a")
    for n in range(MAX_WAITING + 100):
        end(found, f"flood-{n}", owner="tenant:b")
    await found.close()
    assert found.report("i").lost == 101 and len(lines.lines) == MAX_WAITING
    assert found.unit_digest(ChosenArm(experiment(), "small", "mine", SMALL)).hex() in {
        line["unit"] for line in lines.lines
    }


# --- outcomes


async def test_feedback_counts_for_the_arm_of_the_response_once_for_a_unit(tmp_path: Path) -> None:
    made = experiment()
    keys = write_keys(tmp_path / "keys.json", {"k1": b"a" * 32})
    async with running(made, tenant_keys_file=keys) as gate:

        async def token_of(user: str) -> str:
            async with await gate.post(BODY | {"user": user}) as answer:
                return answer.headers[FEEDBACK]

        async def rate(*entries: dict[str, Any]) -> list[str]:
            async with gate.client.post(f"{gate.url}/v1/feedback", json=list(entries)) as answer:
                assert answer.status == 200, await answer.text()
                return [one["status"] for one in (await answer.json())["data"]]

        small = [user for user in (f"user-{n}" for n in range(40)) if arm_of(made, user) == "small"][:3]
        tokens = [await token_of(user) for user in small]
        assert await rate(*({"id": token, "name": "helpful", "score": 0.25} for token in tokens)) == ["accepted"] * 3
        assert await rate({"id": tokens[0], "name": "helpful", "score": 1}) == ["duplicate"]
        assert await rate({"id": tokens[0], "correct": True}) == ["accepted"]
        assert await rate({"id": tokens[0], "name": "unknown", "score": 1}) == ["no_outcome"]
        assert await rate({"id": tokens[0], "score": 1}) == ["duplicate"], "it has no name, and one without had come"
        again = await token_of(small[0])
        assert await rate({"id": again, "name": "helpful", "score": 1}) == ["accepted"]
        outcomes = (await report(gate))["arms"]["small"]["outcomes"]
        assert outcomes == {"helpful": {"units": 3, "sum": 0.75}, "correct": {"units": 1, "sum": 1.0}}
        async with await gate.post(BODY) as answer:
            assert FEEDBACK not in answer.headers, "it is in no arm"


async def test_values_of_another_version_do_not_count() -> None:
    found = process(Lines())
    uid = experiment().uid
    for other in ({"version": 2, "uid": uid}, {"version": 1, "uid": "of one that had the name before"}):
        states = Statement(
            "r", 1, b"", "r", 0, b"id", b"", False, experiment="prod/size", arm="small", unit=b"u", **other
        )
        assert not found.counts(states, "helpful")
        await found.rate(states, "helpful", 1.0, "a")
        assert found.report("i").experiments["prod/size"].arms == {}


# --- logs


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def test_an_http_server_gets_batches_that_are_repeated_and_lost_ones_are_counted() -> None:
    statuses = [503, 200, 400]

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=statuses.pop(0))

    async with upstream(answer) as server:
        hosts, url = ListedHosts.of(["localhost"]), f"http://localhost:{server.port}"
        sink = HttpSink(url, replace(hosts, loopback=True), sleep=lambda _: None)
        await asyncio.to_thread(sink.write, [b'{"a":1}\n', b'{"a":2}\n'])
        assert server.bodies == [b'{"a":1}\n{"a":2}\n'] * 2
        with pytest.raises(UnwrittenLines, match="status 400"):
            await asyncio.to_thread(sink.write, [b"{}\n"])
        guarded = HttpSink(url, hosts, sleep=lambda _: None)
        with pytest.raises(UnwrittenLines):
            await asyncio.to_thread(guarded.write, [b"{}\n"])
        assert not statuses and len(server.bodies) == 3, "loopback must not be called"
    with pytest.raises(ValueError, match="--exposure-hosts"):
        HttpSink("http://example.com", hosts)


async def test_a_database_keeps_each_exposure_once(tmp_path: Path) -> None:
    path = tmp_path / "exposures.db"
    for _ in range(2):  # two processes
        async with running(experiment(), exposure_database_url=f"sqlite:///{path}", exposure_raw_units=True) as gate:
            for n in range(10):
                await reached(gate, f"user-{n}")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("select value, arm, experiment from slipway_exposures order by value").fetchall()
    made = experiment()
    assert rows == [(f"user-{n}", arm_of(made, f"user-{n}"), "prod/size") for n in range(10)]


async def test_a_log_that_takes_nothing_is_counted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/no-such-folder/exposures.db"
    async with running(experiment(), exposure_database_url=url) as gate:
        await reached(gate, "user-1")
        await until_async(lambda: gate.metrics.lost_exposures() == 1, "the exposure is lost")
        async with gate.client.get(f"{gate.admin_url}/internal/experiments") as answer:
            assert (await answer.json())["lost"] == 1
        labels = {"sink": "database", "reason": "write_failed"}
        assert gate.metrics.registry.get_sample_value("slipway_gateway_exposures_lost_total", labels) == 1


def test_kafka_without_its_library_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="aiokafka is not installed"):
        KafkaSink(["kafka:9092"], "t")
