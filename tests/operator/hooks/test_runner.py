"""Questions in the background against a real receiver: tries, keys, bounds."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from aiohttp import web

from slipway_operator.api.v1alpha1.hooks import HookFormat, HookType
from slipway_operator.hooks import runner as runner_room
from slipway_operator.hooks.post import Poster, SecretUnreadable
from slipway_operator.hooks.runner import HookRunner
from slipway_operator.model.deployment.hooks import Hook, HookAnswer, HookCall
from slipway_operator.outbound.addresses import EgressPolicy
from slipway_operator.outbound.dialer import Dialer
from slipway_process.fair_memory import FairMemory
from slipway_process.places import Places
from testkit.until import until_async

CHAT = ("default", "chat")
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Stage:
    """A runner with its receiver, and the outcomes that it reported."""

    def __init__(self, receiver, poster):
        self.receiver, self.woken, self.measured, self.slept = receiver, asyncio.Queue(), [], []
        self.secrets = {}
        self.runner = HookRunner(poster, self.woken.put_nowait, self.measure, self.secret, lambda: NOW, self.sleep)

    async def secret(self, namespace, wanted):
        if wanted not in self.secrets:
            raise SecretUnreadable(f"Secret {wanted[0]!r} cannot be read")
        return self.secrets[wanted]

    def measure(self, kind, outcome, seconds):
        self.measured.append((kind, outcome))

    async def sleep(self, seconds):
        self.slept.append(seconds)

    def call(self, key="u/r/1/0/smoke/1", kind=HookType.PRE_ROLLOUT, retries=2, timeout_s=5):
        url = str(self.receiver.make_url("/"))
        return HookCall(key, Hook("smoke", kind, url, timeout_s, retries), {"name": "chat"})

    async def answer(self, call, key=CHAT):
        """Follow one question to its end."""
        self.runner.follow(key, [call])
        assert await asyncio.wait_for(self.woken.get(), 10) == key
        return self.runner.answers(key)[call.key]


@pytest.fixture
async def stage(receiver):
    stage = Stage(receiver, Poster(Dialer(EgressPolicy(loopback=True), "hooks"), None, lambda: 0.0))
    yield stage
    await stage.runner.close()


def replies(*statuses):
    left = list(statuses)

    async def reply(request):
        return web.Response(status=left.pop(0), text="body")

    return reply


def held(stage):
    """Make the receiver hold every response until `release` is set."""
    release = asyncio.Event()

    async def reply(request):
        await release.wait()
        return web.Response(text="late")

    stage.receiver.reply = reply
    return release


async def test_answer_is_kept_until_the_status_drops_the_call(stage):
    call = stage.call()
    assert await stage.answer(call) == HookAnswer(True, "200 OK")
    assert stage.runner.follow(CHAT, [call])
    assert len(stage.receiver.got) == 1, "an answered call is not repeated"
    stage.runner.follow(CHAT, [])
    assert stage.runner.answers(CHAT) == {}
    body = json.loads(stage.receiver.got[0][1])
    assert body == {"name": "chat", "idempotencyKey": call.key, "timestamp": "2026-11-21T12:00:00Z"}
    assert stage.measured == [("pre-rollout", "ok")]


async def test_tries_share_key_and_body_and_back_off(stage):
    stage.receiver.reply = replies(500, 503, 200)
    assert await stage.answer(stage.call()) == HookAnswer(True, "200 OK (try 3 of 3)")
    assert len({(headers["Idempotency-Key"], body) for headers, body in stage.receiver.got}) == 1
    assert stage.slept == [1.0, 2.0]
    assert stage.measured == [("pre-rollout", "refused")] * 2 + [("pre-rollout", "ok")]


async def test_tries_end(stage):
    stage.receiver.reply = replies(*[500] * 6)
    answer = await stage.answer(stage.call(retries=5))
    assert answer == HookAnswer(False, "500 Internal Server Error (try 6 of 6)")
    assert stage.slept == [1.0, 2.0, 4.0, 8.0, 10.0]


async def test_refusal_is_not_retried(stage):
    stage.receiver.reply = replies(403)
    assert await stage.answer(stage.call()) == HookAnswer(False, "403 Forbidden")


@pytest.mark.parametrize("kind", ["confirm-rollout", "confirm-traffic-increase", "confirm-promotion", "rollback"])
async def test_gate_is_tried_once_per_call(stage, kind):
    stage.receiver.reply = replies(500)
    answer = await stage.answer(stage.call(kind=HookType(kind)))
    assert answer == HookAnswer(False, "500 Internal Server Error")


async def test_call_in_progress_is_not_repeated(stage):
    release, call = held(stage), stage.call()
    stage.runner.follow(CHAT, [call])
    await until_async(lambda: stage.receiver.got)
    stage.runner.follow(CHAT, [call])
    release.set()
    await stage.woken.get()
    assert len(stage.receiver.got) == 1


async def test_answer_to_a_dropped_call_queues_no_deployment(stage):
    release, call = held(stage), stage.call()
    stage.runner.follow(CHAT, [call])
    await until_async(lambda: stage.receiver.got)
    stage.runner.forget(CHAT)
    release.set()
    await until_async(lambda: stage.measured)
    other = stage.call("u/r/1/1/smoke/2")
    await stage.answer(other)
    assert set(stage.runner.answers(CHAT)) == {other.key}


async def test_new_process_repeats_the_call_with_the_same_key(stage):
    held(stage)
    call = stage.call()
    stage.runner.follow(CHAT, [call])
    await until_async(lambda: stage.receiver.got)
    await stage.runner.close()
    second = Stage(stage.receiver, stage.runner._poster)
    stage.receiver.reply = replies(200)
    assert (await second.answer(call)).ok
    assert [headers["Idempotency-Key"] for headers, _ in stage.receiver.got] == [call.key] * 2


async def test_namespace_cannot_delay_calls_of_another(stage):
    release = asyncio.Event()

    async def reply(request):
        if b'"slow"' in await request.read():
            await release.wait()
        return web.Response()

    stage.receiver.reply = reply
    slow = HookCall("slow", stage.call().hook, {"name": "slow"})
    for number in range(runner_room.CALLS_AT_A_TIME + 10):
        stage.runner.follow(("noisy", f"m{number}"), [HookCall(f"slow/{number}", slow.hook, slow.payload)])
    await until_async(lambda: len(stage.receiver.got) == runner_room.CALLS_OF_A_NAMESPACE)
    assert (await stage.answer(stage.call(), ("quiet", "chat"))).ok
    assert len(stage.receiver.got) == runner_room.CALLS_OF_A_NAMESPACE + 1
    release.set()


async def test_calls_beyond_a_share_wait_for_the_next_plan(stage):
    stage.runner._places = Places(4)  # of which a namespace that is alone gets half
    release = held(stage)
    calls = [stage.call(f"k/{number}") for number in range(3)]
    assert not stage.runner.follow(CHAT, calls)
    await until_async(lambda: len(stage.receiver.got) == 2)
    release.set()
    # A call leaves its place when its task has ended, a moment after its answer is there.
    await until_async(lambda: len(stage.runner.answers(CHAT)) == 2 and not stage.runner._places.used)
    assert stage.runner.follow(CHAT, calls)
    await until_async(lambda: len(stage.runner.answers(CHAT)) == 3)


def hanging_for(stage, namespaces):
    """Make the receiver hang for the calls of these namespaces, which their payloads name."""

    async def reply(request):
        if json.loads(await request.read())["namespace"] in namespaces:
            await asyncio.Event().wait()
        return web.Response()

    stage.receiver.reply = reply


def calls_of(stage, namespace, count, kind):
    hook = stage.call(kind=kind, timeout_s=300).hook
    return [HookCall(f"{namespace}/{number}", hook, {"namespace": namespace}) for number in range(count)]


@pytest.mark.finding("F8")
async def test_as_many_hanging_gates_as_the_operator_holds_keep_no_other_namespaces_gate(stage):
    """512 ModelDeployments with 8 gates each; before, the ninth's call was not even begun."""
    hanging_for(stage, {"hog"})
    for number in range(512):
        calls = calls_of(stage, "hog", 8, HookType.CONFIRM_ROLLOUT)
        named = [replace(call, key=f"{call.key}/{number}") for call in calls]
        stage.runner.follow(("hog", f"m{number}"), named)
    (call,) = calls_of(stage, "quiet", 1, HookType.CONFIRM_ROLLOUT)
    assert (await stage.answer(call, ("quiet", "chat"))).ok
    assert stage.runner._places.held_by("hog") == runner_room.QUESTIONS_LIMIT // 2


@pytest.mark.finding("F8")
async def test_of_notices_beyond_the_limit_the_namespace_with_most_loses_its_oldest(stage):
    hanging_for(stage, {"hog"})
    hog = calls_of(stage, "hog", runner_room.NOTICES_LIMIT + 10, HookType.EVENT)
    stage.runner.notify(("hog", "chat"), hog)
    assert stage.measured == [("event", "dropped")] * 10
    stage.runner.notify(("quiet", "chat"), calls_of(stage, "quiet", 3, HookType.EVENT))
    await until_async(lambda: stage.measured[-3:] == [("event", "ok")] * 3)
    assert stage.measured[:-3] == [("event", "dropped")] * 13, "each of them took the place of one of the hog's"
    await until_async(lambda: len(stage.runner._notices.of("hog")) == runner_room.NOTICES_LIMIT - 3)
    assert next(iter(stage.runner._notices.of("hog").values())) == hog[13]


@pytest.mark.finding("F8")
async def test_many_namespaces_whose_hooks_hang_leave_turns_to_others(stage):
    """Eight of them had all 64 turns; the ninth namespace waited for up to 300 s."""
    hogs = [f"hog-{number}" for number in range(10)]
    hanging_for(stage, hogs)
    for hog in hogs:
        stage.runner.follow((hog, "chat"), calls_of(stage, hog, 64, HookType.CONFIRM_ROLLOUT))
    await until_async(lambda: stage.receiver.got)
    (call,) = calls_of(stage, "quiet", 1, HookType.CONFIRM_ROLLOUT)
    assert (await stage.answer(call, ("quiet", "chat"))).ok


async def test_notices_are_sent_and_forgotten(stage):
    stage.runner.notify(CHAT, [stage.call(kind=HookType.EVENT)])
    await until_async(lambda: stage.measured == [("event", "ok")])
    assert stage.runner.answers(CHAT) == {}
    assert stage.woken.empty()


async def test_notices_beyond_the_limit_are_dropped_and_counted(stage):
    stage.runner._notices = FairMemory(2)
    release = held(stage)
    calls = [stage.call(f"k/{number}", HookType.EVENT) for number in range(5)]
    stage.runner.notify(CHAT, calls)
    assert stage.measured == [("event", "dropped")] * 3
    assert list(stage.runner._notices.of(CHAT[0]).values()) == calls[3:], "the oldest are dropped"
    release.set()
    await until_async(lambda: len(stage.measured) == 5)


async def test_a_bug_is_an_answer_too(stage, monkeypatch, caplog):
    async def broken(*_):
        raise RuntimeError("oops")

    monkeypatch.setattr(stage.runner._poster, "post", broken)
    answer = await stage.answer(stage.call())
    assert answer == HookAnswer(False, "the operator failed to put the question; see its log")
    assert "a bug: hook smoke of default/chat raised" in caplog.text


NOTICE = {
    "name": "chat",
    "namespace": "default",
    "type": "post-rollout",
    "phase": "Failed",
    "revision": "aaaaaaaaaa",
    "reason": "an analysis found it worse",
}


def notification(stage, form, path="/", secret=None):
    url = str(stage.receiver.make_url("/")) + path.lstrip("/")
    hook = Hook("team", HookType.POST_ROLLOUT, url, 5, 0, format=HookFormat(form), secret=secret)
    return HookCall("u/r/1/0/team/1", hook, NOTICE)


async def test_a_notification_has_the_form_of_its_service_and_a_secret_in_its_path(stage):
    stage.secrets[("team", "url")] = "T0/B0/s3cret"
    paths = []

    async def reply(request):
        paths.append(request.path)
        return web.Response()

    stage.receiver.reply = reply
    answer = await stage.answer(notification(stage, "Slack", "/services/$(secret)", ("team", "url")))
    assert answer.ok and "s3cret" not in answer.message
    assert paths == ["/services/T0/B0/s3cret"]
    [(_, body)] = stage.receiver.got
    assert json.loads(body)["text"] == "default/chat: revision aaaaaaaaaa rejected"


async def test_a_secret_that_cannot_be_read_sends_nothing_and_is_named(stage):
    answer = await stage.answer(notification(stage, "PagerDuty", secret=("pager", "key")))
    assert not answer.ok and "Secret 'pager'" in answer.message
    assert not stage.receiver.got
    stage.secrets[("pager", "key")] = "0" * 32
    assert (await stage.answer(replace(notification(stage, "PagerDuty", secret=("pager", "key")), key="other"))).ok
    assert json.loads(stage.receiver.got[0][1])["routing_key"] == "0" * 32


async def test_an_empty_secret_sends_nothing_to_an_address_with_a_placeholder(stage):
    stage.secrets[("team", "url")] = ""
    answer = await stage.answer(notification(stage, "Slack", "/services/$(secret)", ("team", "url")))
    assert not answer.ok and "holds no part of a URL" in answer.message and not stage.receiver.got
