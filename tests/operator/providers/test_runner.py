"""Measurements in the background: one per key, bounded, dropped when no analysis needs them any more."""

import asyncio

import pytest

from slipway_operator.model.analysis.measure import Job, Measure, ProviderAnswer, Question, Web
from slipway_operator.providers import runner as runner_room
from slipway_operator.providers.runner import MeasurementRunner
from slipway_process.places import Places
from testkit.until import until_async

CHAT, OTHER = ("default", "chat"), ("other", "chat")


class GatedClient:
    """Returns results while it is open."""

    def __init__(self):
        self.requested, self.released, self.open, self.failure = [], [], asyncio.Event(), None
        self.open.set()
        self.releases = asyncio.Event()
        self.releases.set()
        self.releasing = 0

    async def measure(self, namespace, question):
        self.requested.append(question.key)
        await self.open.wait()
        if self.failure:
            raise self.failure
        return ProviderAnswer(len(self.requested))

    async def release(self, question):
        self.releasing += 1
        await self.releases.wait()
        self.released.append(question.key)


class Stage:
    def __init__(self):
        self.client, self.woken, self.measured = GatedClient(), asyncio.Queue(), []
        self.runner = MeasurementRunner(
            self.client,
            self.woken.put_nowait,
            lambda provider, outcome, seconds: self.measured.append((provider, outcome)),
        )

    async def answer(self, question, key=CHAT):
        self.runner.follow(key, [question])
        assert await asyncio.wait_for(self.woken.get(), 10) == key
        return self.runner.answers(key)[question.key]


@pytest.fixture
async def stage():
    stage = Stage()
    yield stage
    await stage.runner.close()


def ask(key="a"):
    return Question(key, Measure("m", web=Web("http://q")))


def job(key="j"):
    return Question(key, Measure("m", job=Job({})), {"metadata": {"name": key}})


async def test_answer_is_kept_until_no_analysis_needs_it(stage):
    assert (await stage.answer(ask())).value == 1
    assert stage.runner.follow(CHAT, [ask()])
    assert stage.runner.answers(CHAT)["a"].value == 1 and stage.client.requested == ["a"], "requested once"
    stage.runner.follow(CHAT, [ask("b")])
    assert "a" not in stage.runner.answers(CHAT)
    assert stage.measured[0] == ("web", "ok")


async def test_measurement_in_progress_is_not_repeated(stage):
    stage.client.open.clear()
    for _ in range(3):
        stage.runner.follow(CHAT, [ask()])
        await asyncio.sleep(0)
    assert stage.client.requested == ["a"]
    stage.client.open.set()
    assert await asyncio.wait_for(stage.woken.get(), 10) == CHAT


async def test_measurement_that_is_not_needed_any_more_is_cancelled(stage):
    stage.client.open.clear()
    stage.runner.follow(CHAT, [ask(), job()])
    await until_async(lambda: len(stage.client.requested) == 2)
    stage.runner.follow(CHAT, [])
    await until_async(lambda: stage.client.released == ["j"])
    assert stage.runner.answers(CHAT) == {} and stage.woken.empty()
    stage.client.open.set()
    assert (await stage.answer(ask())).value == 3, "and its key is free again"


async def test_measurement_that_never_started_leaves_nothing_behind(stage):
    stage.runner.follow(CHAT, [ask()])
    stage.runner.follow(CHAT, [])
    await asyncio.sleep(0.01)
    assert stage.client.requested == []
    assert (await stage.answer(ask())).value == 1


async def test_measurement_that_is_needed_again_while_it_ends_is_taken_again(stage):
    """Its task is cancelled and has not run since."""
    stage.client.open.clear()
    stage.runner.follow(CHAT, [ask(), ask("b")])
    await until_async(lambda: len(stage.client.requested) == 2)
    stage.runner.follow(CHAT, [ask("b")])
    stage.runner.follow(CHAT, [ask(), ask("b")])
    stage.client.open.set()
    await until_async(lambda: stage.runner.answers(CHAT).keys() == {"a", "b"})
    assert stage.client.requested == ["a", "b", "a"]


@pytest.mark.parametrize("times", [1, 2])
async def test_a_job_that_is_needed_again_while_it_is_deleted_is_made_after_that(stage, times):
    """Found before its deletion, it would be one that was deleted before it ended: an error of the measurement."""
    stage.client.open.clear()
    stage.client.releases.clear()
    stage.runner.follow(CHAT, [job()])
    await until_async(lambda: stage.client.requested)
    for _ in range(times):
        stage.runner.follow(CHAT, [])
        await until_async(lambda: stage.client.releasing == 1)
        stage.runner.follow(CHAT, [job()])
    await asyncio.sleep(0.01)
    assert stage.client.requested == ["j"] and stage.client.released == []
    stage.client.releases.set()
    stage.client.open.set()
    await until_async(lambda: stage.runner.answers(CHAT))
    assert stage.client.requested == ["j", "j"] and len(stage.client.released) == times


async def test_a_job_is_let_go_when_its_answer_is_written_down(stage):
    await stage.answer(job())
    assert stage.client.released == []
    stage.runner.follow(CHAT, [job("j2")])
    await until_async(lambda: stage.client.released == ["j"])


async def test_a_job_outlives_the_operator(stage):
    """The next process finds it under its name."""
    stage.client.open.clear()
    stage.runner.follow(CHAT, [job()])
    await until_async(lambda: stage.client.requested)
    await stage.runner.close()
    assert stage.client.released == []


async def test_a_bug_is_an_error_and_no_silence(stage, caplog):
    stage.client.failure = KeyError("x")
    answer = await stage.answer(ask())
    assert answer.problem == "the operator failed to measure; see its log"
    assert "a bug: measurement a raised" in caplog.text
    assert stage.measured == [("web", "error")]


async def test_hanging_measurement_of_one_namespace_delays_no_other(stage, monkeypatch):
    stage.client.open.clear()
    questions = [ask(str(n)) for n in range(20)]
    stage.runner.follow(CHAT, questions)
    stage.runner.follow(OTHER, [ask("other")])
    await until_async(lambda: len(stage.client.requested) == runner_room.OF_A_NAMESPACE + 1)
    assert stage.client.requested[-1] == "other"


async def test_jobs_hold_up_no_request(stage):
    stage.client.open.clear()
    stage.runner.follow(CHAT, [*(job(f"j{n}") for n in range(20)), ask()])
    await until_async(lambda: len(stage.client.requested) == 21)


async def test_measurements_in_progress_are_limited(stage):
    stage.runner._places = Places(4)  # of which a namespace that is alone gets half
    stage.client.open.clear()
    assert not stage.runner.follow(CHAT, [ask("a"), ask("b"), ask("c")])
    await until_async(lambda: len(stage.client.requested) == 2)
    stage.client.open.set()
    assert await asyncio.wait_for(stage.woken.get(), 10) == CHAT
    assert stage.runner.follow(CHAT, [ask("a"), ask("c")])
    await until_async(lambda: "c" in stage.runner.answers(CHAT))


@pytest.mark.finding("F8")
@pytest.mark.parametrize("make", [ask, job])
async def test_as_many_hanging_measurements_as_the_operator_holds_keep_no_other_namespaces(stage, make):
    stage.client.open.clear()
    for number in range(512):
        stage.runner.follow(("hog", f"m{number}"), [make(f"hog/{number}/{n}") for n in range(8)])
    assert stage.runner._places.held_by("hog") == runner_room.QUESTIONS_LIMIT // 2
    assert stage.runner.follow(OTHER, [make("other")])
    await until_async(lambda: stage.client.requested[-1:] == ["other"])


async def test_places_are_given_back(stage):
    stage.client.open.clear()
    stage.runner.follow(CHAT, [ask("a"), job("b"), ask("never started")])
    stage.runner.follow(CHAT, [ask("a"), job("b")])
    stage.client.open.set()
    await until_async(lambda: len(stage.runner.answers(CHAT)) == 2)
    assert stage.runner._places.free == runner_room.QUESTIONS_LIMIT


async def test_a_deleted_deployment_is_forgotten(stage):
    stage.client.open.clear()
    stage.runner.follow(CHAT, [ask(), job()])
    await until_async(lambda: len(stage.client.requested) == 2)
    stage.runner.forget(CHAT)
    stage.client.open.set()
    await asyncio.sleep(0.01)
    assert stage.woken.empty() and stage.client.released == [], "its Jobs go with their owner"
