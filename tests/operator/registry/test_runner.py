"""Registered models are looked up seldom, within bounds, and with the namespace's own credentials."""

import asyncio
import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ed25519

from slipway_contracts.verdict_statements import PAYLOAD_TYPE
from slipway_operator.api.v1alpha1.status import Abort, Rollout, State, Status
from slipway_operator.component import NotYet, ReconciledDeployment
from slipway_operator.kube.errors import Refused
from slipway_operator.model.cluster.observed import Observed, RegistryAnswer, Snapshot
from slipway_operator.model.cluster.plan import Plan
from slipway_operator.model.deployment.spec import Spec
from slipway_operator.model.inputs.registry import RegistrySource
from slipway_operator.outbound.addresses import EgressPolicy
from slipway_operator.planning.facts import registry
from slipway_operator.registry.client import LONGEST_TAG
from slipway_operator.registry.runner import ALWAYS, NEVER, OF_A_NAMESPACE, RegistryRunner
from slipway_process import dsse
from tests.operator.registry.tracking import NOW, Api, Bench, Tracking, bench, deployment

URI = "models:/chat@champion"
CHAT = deployment("chat", URI)
LOOK = ["registered-models/get", "model-versions/get", "model-versions/get-download-uri", "runs/get"]


def secret(**data: str) -> dict[str, Any]:
    return {"metadata": {}, "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}}


def answer(of: Bench, one: ReconciledDeployment = CHAT) -> RegistryAnswer:
    found = of.runner.observe(one, Observed()).registry
    assert found is not None
    return found


async def first(of: Bench, one: ReconciledDeployment = CHAT) -> RegistryAnswer:
    """The answer of the first look: until then the reconcile waits."""
    with pytest.raises(NotYet):
        of.runner.observe(one, Observed())
    assert await of.next() == one.key
    return answer(of, one)


async def test_an_alias_is_resolved_with_what_the_registry_knows_and_its_move_wakes_all_that_name_it() -> None:
    async with bench(Tracking({"chat": {"champion": "3", "old": "1"}})) as of:
        found = (await first(of)).version
        assert found and (found.version, found.source) == ("3", "mlflow-artifacts:///1/r3/artifacts/model")
        assert found.facts.owner == "ann [31m" and found.facts.dataset == "wiki d1"
        assert found.facts.metrics == ("loss=0.25", "acc=1") and found.facts.aliases == ("champion=3", "old=1")
        assert of.tracking.calls == LOOK
        by_number = deployment("other", "models:/chat/1")
        await first(of, by_number)
        of.tracking.calls.clear()
        of.due()
        of.tracking.aliases["chat"]["champion"] = "4"
        assert {await of.next(), await of.next()} == {CHAT.key, by_number.key}, "both see the aliases"
        assert of.tracking.calls.count("registered-models/get") == 1, "one call for a name"
        moved, other = answer(of).version, answer(of, by_number).version
        assert moved and other and (moved.version, other.version) == ("4", "1")


async def test_what_the_status_has_needs_no_wait_and_its_look_comes_later() -> None:
    kept = deployment("chat", URI, status={"registry": {"uri": URI, "version": "2"}})
    async with bench(Tracking({"chat": {"champion": "3"}})) as of:
        assert of.runner.observe(kept, Observed()).registry is None
        assert await of.next() == kept.key and answer(of, kept).version


async def slow(request: web.Request) -> web.Response:
    await asyncio.sleep(3600)
    raise AssertionError


FAULTS = {
    "500": (lambda _: web.Response(status=500, text="secret"), registry.UNAVAILABLE),
    "no JSON": (lambda _: web.Response(text="<html>secret"), registry.UNAVAILABLE),
    "deep JSON": (lambda _: web.Response(text="[" * 100_000), registry.UNAVAILABLE),
    "another JSON": (lambda _: web.json_response({"registered_model": ["secret"]}), registry.UNAVAILABLE),
    "too long": (lambda _: web.Response(text="x" * (5 << 20)), registry.UNAVAILABLE),
    "redirect": (
        lambda _: web.Response(status=302, headers={"Location": "http://169.254.169.254/"}),
        registry.UNAVAILABLE,
    ),
    "a long code": (lambda _: web.json_response({"error_code": "A" * 100_000}, status=400), registry.UNAVAILABLE),
    "403": (lambda _: web.Response(status=403, text="secret"), registry.DENIED),
    "gone": (lambda _: web.json_response({"error_code": "RESOURCE_DOES_NOT_EXIST"}, status=404), registry.NOT_FOUND),
    "another 404": (lambda _: web.Response(status=404, text="secret"), registry.UNAVAILABLE),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_failed_look_keeps_the_version_and_names_the_failure(fault: str) -> None:
    async with bench(Tracking({"chat": {"champion": "3"}})) as of:
        before = await first(of)
        respond, reason = FAULTS[fault]
        of.tracking.fault = {"registered-models/get": respond}
        of.due()
        await of.next()
        failed = answer(of)
        assert (failed.version, failed.reason) == (before.version, reason)
        assert "secret" not in failed.problem and "169" not in failed.problem and len(failed.problem) < 300
        of.tracking.fault = {}
        of.due()
        await of.next()
        assert answer(of) == before


@pytest.mark.parametrize(
    ("version", "source", "reason"),
    [
        ({"version": "9"}, "s3://a-b/c", registry.UNAVAILABLE),
        ({"version": "3", "status": "PENDING_REGISTRATION"}, "s3://a-b/c", registry.NOT_RESOLVED),
        ({"version": "3"}, "file:///mnt/models", registry.NOT_SUPPORTED),
        ({"version": "3"}, "runs:/another/model", registry.NOT_SUPPORTED),
        ({"version": "3"}, "http://169.254.169.254/latest", registry.NOT_SUPPORTED),
        ({"version": "3"}, "", registry.NOT_SUPPORTED),
        ({"version": "3/../4"}, "s3://a-b/c", registry.UNAVAILABLE),
    ],
)
async def test_a_version_that_cannot_be_served_is_named(version: dict[str, str], source: str, reason: str) -> None:
    tracking = Tracking({"chat": {"champion": "3"}}, source=source)
    tracking.fault = {"model-versions/get": lambda _: web.json_response({"model_version": version})}
    async with bench(tracking) as of:
        found = await first(of)
        assert found.version is None and found.reason == reason and found.problem.isprintable()


async def test_an_alias_that_is_not_there_is_named() -> None:
    async with bench(Tracking({"chat": {"other": "3"}})) as of:
        found = await first(of)
        assert found.reason == registry.NOT_FOUND and "'champion'" in found.problem


async def test_the_namespaces_own_credentials_are_sent_and_no_others() -> None:
    api = Api({("ns", "basic"): secret(MLFLOW_TRACKING_USERNAME="ann", MLFLOW_TRACKING_PASSWORD="p:w")})
    api.secrets["ns", "token"] = secret(MLFLOW_TRACKING_TOKEN=" t0ken\n", AWS_SECRET_ACCESS_KEY="no")
    async with bench(Tracking({"chat": {"champion": "3"}}), api) as of:
        for name, header in (("basic", "Basic " + base64.b64encode(b"ann:p:w").decode()), ("token", "Bearer t0ken")):
            of.tracking.authorizations.clear()
            assert (await first(of, deployment(name, URI, name))).version
            assert of.tracking.authorizations == {header}
        of.tracking.authorizations.clear()
        assert (await first(of, deployment("open", URI, namespace="other"))).version
        assert of.tracking.authorizations == {""}


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (None, "is not in namespace ns"),
        (Refused(403, "forbidden"), "resourceNames: [keys]"),
        ({"metadata": {"labels": {"app.kubernetes.io/managed-by": "slipway"}}, "data": {}}, "keys of Slipway"),
        (secret(MLFLOW_TRACKING_USERNAME="ann"), "needs both"),
        (secret(MLFLOW_TRACKING_TOKEN="a\r\nHost: b"), "characters that no header has"),
        ({"metadata": {}, "data": {"MLFLOW_TRACKING_TOKEN": "%%%"}}, "is no text"),
    ],
)
async def test_without_its_credentials_a_namespace_sends_nothing(found: Any, sentence: str) -> None:
    api = Api({("ns", "keys"): found} if found is not None else {})
    async with bench(Tracking({"chat": {"champion": "3"}}), api) as of:
        failed = await first(of, deployment("chat", URI, "keys"))
        assert failed.reason == registry.DENIED and sentence in failed.problem
        assert not of.tracking.calls


async def test_a_tracking_server_at_a_forbidden_address_is_not_called() -> None:
    async with bench(Tracking({"chat": {"champion": "3"}}), policy=EgressPolicy()) as of:
        assert (await first(of)).reason == registry.UNAVAILABLE and not of.tracking.calls


async def test_names_are_bounded_for_each_namespace() -> None:
    async with bench(Tracking()) as of:
        for number in range(OF_A_NAMESPACE):
            with pytest.raises(NotYet):
                of.runner.observe(deployment(f"d{number}", f"models:/m{number}@x"), Observed())
        assert answer(of).reason == registry.TOO_MANY
        with pytest.raises(NotYet):
            of.runner.observe(deployment("chat", URI, namespace="other"), Observed())
        of.runner.forget(("ns", "d0"))
        with pytest.raises(NotYet):
            of.runner.observe(CHAT, Observed())


async def test_a_slow_server_holds_up_no_other_namespace() -> None:
    tracking = Tracking({"chat": {"champion": "3"}})

    async def hang_for_one(request: web.Request) -> web.StreamResponse:
        if request.query["name"] != "chat":
            await asyncio.sleep(3600)
        return await tracking._right("registered-models/get", request)

    tracking.fault = {"registered-models/get": hang_for_one}
    async with bench(tracking) as of:
        for number in range(10):
            with pytest.raises(NotYet):
                of.runner.observe(deployment(f"d{number}", f"models:/m{number}@x", namespace="bad"), Observed())
        assert (await first(of)).version


async def test_without_a_tracking_server_the_setting_is_named() -> None:
    api: Any = Api()
    runner = RegistryRunner(api, None, lambda _: None, lambda: True, lambda: NOW)
    found = runner.observe(CHAT, Observed()).registry
    assert found and found.reason == registry.NOT_CONFIGURED and "registry.mlflow.url" in found.problem


async def test_a_metric_that_no_float_holds_is_left_out() -> None:
    tracking = Tracking({"chat": {"champion": "3"}})
    body = '{"run": {"data": {"metrics": [{"key": "big", "value": 1%s}, {"key": "loss", "value": 2}]}}}' % ("0" * 400)
    tracking.fault = {"runs/get": lambda _: web.Response(text=body)}
    tracking.source = "s3://models/chat"
    async with bench(tracking) as of:
        found = await first(of)
        assert found.version and found.version.facts.metrics == ("loss=2",), found.problem


# --- verdicts ---------------------------------------------------------------------------------------------------------


def rejected(one: ReconciledDeployment, version: str = "4") -> tuple[Observed, Plan]:
    """What is observed and planned when this version was rejected."""
    assert isinstance(one.spec, Spec)
    inputs = replace(one.spec.inputs, registry=RegistrySource("chat", version))
    snapshot = Snapshot("aaaaaaaaaa", 2, inputs, "image", 300, 3)
    abort = Abort("AnalysisFailed", "worse\nby far", NOW)
    status = Status(rollout=Rollout(State.ABORTED, "aaaaaaaaaa", 1, abort=abort))
    return Observed(snapshots={"aaaaaaaaaa": snapshot}), Plan(status)


def credited(name: str = "chat") -> tuple[Api, ReconciledDeployment]:
    return Api({("ns", "keys"): secret(MLFLOW_TRACKING_TOKEN="t")}), deployment(name, URI, "keys")


async def settled(of: Bench) -> None:
    """All that is due now was done."""
    async with asyncio.timeout(20):
        while of.runner._tasks or any(one.wanted != one.confirmed for one in of.runner._verdicts.values()):
            await asyncio.gather(*of.runner._tasks.values())
            await asyncio.sleep(0)


async def test_a_verdict_becomes_tags_once_and_a_new_process_writes_none_again() -> None:
    api, one = credited()
    tracking = Tracking({"chat": {"champion": "3"}})
    for _ in range(2):
        async with bench(tracking, api) as of:
            await first(of, one)
            of.runner.after(one, *rejected(one), NOW)
            await settled(of)
            for _ in range(3):
                of.runner.after(one, *rejected(one), NOW)
                of.due()
                await settled(of)
    assert tracking.tags == {
        "chat/4": {
            "slipway.ns.chat.verdict": "rejected",
            "slipway.ns.chat.reason": "revision aaaaaaaaaa: AnalysisFailed: worse by far",
            "slipway.ns.chat.at": "2026-12-01T00:00:00Z",
        }
    }
    assert tracking.calls.count("model-versions/set-tag") == 3 and not api.events


def stated(text: str) -> tuple[ReconciledDeployment, Observed, Plan]:
    """A rejection whose record has this text as its statement."""
    one = deployment("chat", URI, "keys")
    observed, planned = rejected(one)
    snapshots = {name: replace(item, statement=text) for name, item in observed.snapshots.items()}
    return one, replace(observed, snapshots=snapshots), planned


def envelope(**changes: str) -> str:
    """What the operator signs of that rejection, as far as the registry reads it."""
    about = {"revision": "aaaaaaaaaa", "verdict": "rejected", "decidedAt": "2026-12-01T00:00:00Z", **changes}
    return dsse.sign(PAYLOAD_TYPE, json.dumps({"predicate": about}).encode(), ed25519.Ed25519PrivateKey.generate())


async def test_the_signed_statement_follows_as_a_tag_once_it_is_there() -> None:
    api, one = credited()
    tracking = Tracking({"chat": {"champion": "3"}})
    async with bench(tracking, api) as of:
        await first(of, one)
        of.runner.after(*stated(""), NOW)
        await settled(of)
        assert set(tracking.tags["chat/4"]) == {f"slipway.ns.chat.{name}" for name in ("verdict", "reason", "at")}
        text = envelope()
        of.runner.after(*stated(text), NOW)
        of.due()
        await settled(of)
        assert tracking.tags["chat/4"]["slipway.ns.chat.statement"] == text
    assert tracking.calls.count("model-versions/set-tag") == 4 and not api.events


@pytest.mark.parametrize(
    "text",
    [
        "no envelope",
        envelope(verdict="promoted"),
        envelope(decidedAt="2026-11-30T00:00:00Z"),
        envelope(more="x" * LONGEST_TAG),
        envelope() + "\n",
    ],
)
async def test_what_is_no_statement_about_the_verdict_becomes_no_tag(text: str) -> None:
    api, one = credited()
    tracking = Tracking({"chat": {"champion": "3"}})
    async with bench(tracking, api) as of:
        await first(of, one)
        of.runner.after(*stated(text), NOW)
        await settled(of)
    assert len(tracking.tags["chat/4"]) == 3


async def test_a_verdict_whose_turn_comes_after_the_lease_was_lost_is_not_written() -> None:
    """The process that has the lease now may have written a newer one."""
    api, one = credited()
    async with bench(Tracking({"chat": {"champion": "3"}}), api) as of:
        await first(of, one)
        await settled(of)
        runner = of.runner
        async with runner._turns.turn("ns"), runner._turns.turn("ns"):
            runner.after(one, *rejected(one), NOW)
            runner._begin()
            writing = runner._tasks[one.key]
            runner._may_write = lambda: False
        await writing
        assert not of.tracking.tags


async def test_a_verdict_whose_turn_comes_late_is_the_one_that_is_wanted_then() -> None:
    api, one = credited()
    async with bench(Tracking({"chat": {"champion": "3"}}), api) as of:
        await first(of, one)
        await settled(of)
        runner = of.runner
        async with runner._turns.turn("ns"), runner._turns.turn("ns"):
            runner.after(one, *rejected(one), NOW)
            runner._begin()
            await asyncio.sleep(0)  # it waits for its turn
            runner.after(one, *rejected(one, "5"), NOW)
        await settled(of)
        assert set(of.tracking.tags) == {"chat/5"}


async def test_a_version_that_was_deleted_holds_up_no_verdict_about_another() -> None:
    """After a restart nothing is known of what was written: the deleted version fails first."""
    api, one = credited()
    tracking = Tracking({"chat": {"champion": "3"}})

    def without_4(request: web.Request) -> Any:
        gone = web.json_response({"error_code": "RESOURCE_DOES_NOT_EXIST"}, status=404)
        return gone if request.query["version"] == "4" else tracking._right("model-versions/get", request)

    tracking.fault = {"model-versions/get": without_4}
    async with bench(tracking, api) as of:
        await first(of, one)
        of.runner.after(one, *rejected(one), NOW)
        written = of.runner._verdicts[one.key]
        [deleted] = written.wanted.values()
        other = replace(deleted, source=RegistrySource("chat", "5"))
        written.wanted = {deleted.source: deleted, other.source: other}
        async with asyncio.timeout(20):
            await api.posted.wait()
        assert set(tracking.tags) == {"chat/5"}
        assert "version 4" in api.events[0]["message"]


async def test_a_verdict_that_is_refused_is_an_event_and_waits() -> None:
    api, one = credited()
    tracking = Tracking({"chat": {"champion": "3"}})
    tracking.fault = {"model-versions/set-tag": lambda _: web.Response(status=403)}
    async with bench(tracking, api) as of:
        await first(of, one)
        of.runner.after(one, *rejected(one), NOW)
        async with asyncio.timeout(20):
            await api.posted.wait()
        await asyncio.gather(*of.runner._tasks.values())
        [event] = api.events
        assert event["reason"] == "VerdictNotWritten" and "refuses" in event["message"]
        of.due()
        refused = asyncio.Event()

        def refuse(_: web.Request) -> web.Response:
            refused.set()
            return web.Response(status=403)

        tracking.fault = {"model-versions/set-tag": refuse}
        async with asyncio.timeout(20):
            await refused.wait()
        await asyncio.gather(*of.runner._tasks.values())
        assert len(api.events) == 1, "the same failure is no news"
        assert answer(of, one).version, "a verdict that is refused blocks nothing"


@pytest.mark.parametrize(
    ("writes", "has_secret", "written"), [("auto", False, False), (ALWAYS, False, True), (NEVER, True, False)]
)
async def test_when_verdicts_are_written(writes: str, has_secret: bool, written: bool) -> None:
    api, one = credited()
    if not has_secret:
        one = CHAT
    async with bench(Tracking({"chat": {"champion": "3"}}), api, writes=writes) as of:
        await first(of, one)
        of.runner.after(one, *rejected(one), NOW)
        await settled(of)
        assert bool(of.tracking.tags) is written


async def test_a_name_that_is_too_long_for_a_tag_is_an_event() -> None:
    api, one = credited("a" * 250)
    async with bench(Tracking({"chat": {"champion": "3"}}), api) as of:
        await first(of, one)
        of.runner.after(one, *rejected(one), NOW)
        async with asyncio.timeout(20):
            await api.posted.wait()
        assert "longer" in api.events[0]["message"] and not of.tracking.tags
