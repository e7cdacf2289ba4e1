"""Conversations before real engines: contexts are those of whole inputs, from the prefix cache, and agents."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from slipway_gateway.routing.table import Backend, RevisionEndpoints, Route, build
from tests.gateway import tenants
from tests.jobs.responses_engine import Talks, talks
from tests.jobs.world import KEY_A
from tests.server.process import ServerProcess
from tests.support.vllm import VllmProcess

pytestmark = pytest.mark.integration
TINY = Path(__file__).parents[2] / "examples" / "models" / "tiny-v2"
# An answer ends by itself: OpenAI's clients take one that is cut for an error.
GREEDY: dict[str, Any] = {"temperature": 0, "max_output_tokens": 200, "extra_body": {"stop": [" "]}}
BOTH_ENGINES = pytest.mark.parametrize(
    "here",
    ["slipway", pytest.param("vllm", marks=[pytest.mark.extended, pytest.mark.timeout(3600)])],
    indirect=True,
)
VERSE = "In the beginning God created the heaven and the earth. And the earth was without form, and void."
LONG = VERSE * 6  # more than a block of vLLM's cache on CPUs, of 128 tokens


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(TINY, "--served-model-name", "chat", "--drain-timeout", "0") as started:
        yield started.wait_ready()


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmProcess]:
    with VllmProcess(tmp_path_factory.mktemp("vllm")) as started:
        yield started.wait_ready()


@pytest.fixture
async def here(request: pytest.FixtureRequest, keys_file: str, tmp_path: Path) -> AsyncIterator[Talks]:
    """`param`: the type of the engine."""
    kind: str = request.param
    engine: ServerProcess | VllmProcess = request.getfixturevalue("server" if kind == "slipway" else kind)
    async with talks(f"sqlite:///{tmp_path}/jobs.db", keys_file, tmp_path) as made:
        split = (Backend("r1", 100, engine=kind),)
        route = Route("default/chat", "uid", "chat", "2026-01-01T00:00:00Z", 1_000, "salt", split)
        made.edge.balancer.publish(build([route], [RevisionEndpoints("default/chat", "r1", (engine.url,))]))
        yield made


@BOTH_ENGINES
async def test_a_turn_is_answered_as_if_the_client_had_sent_all_items(here: Talks) -> None:
    create = here.client.responses.create
    first = await create(model="chat", input=LONG, **GREEDY)
    async with here.client.responses.stream(
        model="chat", input="Let there be light", previous_response_id=first.id, **GREEDY
    ) as stream:
        second = await stream.get_final_response()
    assert second.store, "it was stored within the time that its last event waits"
    third = await create(model="chat", input="Let there be", previous_response_id=second.id, **GREEDY)
    assert third.store
    items: list[Any] = [
        {"role": "user", "content": LONG},
        *first.output,
        {"role": "user", "content": "Let there be light"},
        *second.output,
        {"role": "user", "content": "Let there be"},
    ]
    whole = await create(model="chat", input=items, store=False, **GREEDY)
    assert whole.output_text == third.output_text
    assert whole.usage and third.usage
    assert whole.usage.input_tokens == third.usage.input_tokens
    # The prompt begins with that of the turn before, so that its blocks are in the cache.
    assert third.usage.input_tokens_details.cached_tokens >= second.usage.input_tokens // 2


@BOTH_ENGINES
async def test_a_context_longer_than_the_models_is_refused_or_cut(here: Talks) -> None:
    answer = await here.client.responses.create(model="chat", input=VERSE * 5, **GREEDY)
    with pytest.raises(openai.BadRequestError) as refused:
        for _ in range(40):
            answer = await here.client.responses.create(
                model="chat", input=VERSE * 5, previous_response_id=answer.id, **GREEDY
            )
    assert refused.value.code == "context_length_exceeded"
    cut = await here.client.responses.create(
        model="chat", input=VERSE * 5, previous_response_id=answer.id, truncation="auto", **GREEDY
    )
    assert int((cut.metadata or {})["slipway_dropped_items"]) >= 2


@pytest.mark.parametrize("here", ["slipway"], indirect=True)
async def test_a_stream_that_its_client_takes_up_again_is_stored_once(here: Talks) -> None:
    made = await here.client.conversations.create()
    given: dict[str, Any] = {"model": "chat", "input": VERSE, "stream": True, "conversation": made.id}
    body = given | {"temperature": 0, "max_output_tokens": 8}
    url, headers = f"{here.edge.url}/v1/responses", tenants.bearer(KEY_A)
    resumable = headers | {"X-Slipway-Resumable": "true"}
    async with here.edge.client.post(url, json=body, headers=resumable) as answer:
        whole = await answer.text()
    ids = [line.removeprefix("id: ") for line in whole.splitlines() if line.startswith("id: ")]
    assert len(ids) > 3
    # The turn is stored: its own items are no part of the context of the request that takes it up.
    async with here.edge.client.post(url, json=body, headers=resumable | {"Last-Event-ID": ids[2]}) as answer:
        assert answer.status == 200, await answer.text()
        rest = await answer.text()
    assert '"store":true' in rest.splitlines()[-2]
    assert whole.endswith(rest[-200:])
    listed = [item async for item in here.client.conversations.items.list(made.id, order="asc")]
    assert [item.role for item in listed] == ["user", "assistant"]  # type: ignore[union-attr]


@BOTH_ENGINES
async def test_agents_of_openais_sdk_continue_by_ids_and_by_sessions(here: Talks) -> None:
    agents = pytest.importorskip("agents", reason="openai-agents is not installed")
    agents.set_tracing_disabled(True)
    model = agents.OpenAIResponsesModel(model="chat", openai_client=here.client)
    settings = agents.ModelSettings(temperature=0, max_tokens=200, extra_body=GREEDY["extra_body"])
    agent = agents.Agent(name="reader", instructions="Go on.", model=model, model_settings=settings)
    first = await agents.Runner.run(agent, VERSE)
    second = await agents.Runner.run(agent, "Let there be light", previous_response_id=first.last_response_id)
    assert second.raw_responses[-1].usage.input_tokens > first.raw_responses[-1].usage.input_tokens
    made = await here.client.conversations.create()
    for text in (VERSE, "Let there be light"):
        streamed = agents.Runner.run_streamed(agent, text, conversation_id=made.id)
        async for _ in streamed.stream_events():
            await asyncio.sleep(0)
    assert len([item async for item in here.client.conversations.items.list(made.id)]) == 4
    session = agents.OpenAIConversationsSession(openai_client=here.client)
    for text in (VERSE, "Let there be light"):
        await agents.Runner.run(agent, text, session=session)
    assert len(await session.get_items()) == 4
