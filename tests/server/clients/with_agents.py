"""What users of OpenAI's Agents SDK write, which uses the Responses API by default. Argument: the URL."""

import asyncio
import json
import sys
from typing import Any, Literal

from agents import (
    Agent,
    ModelSettings,
    Runner,
    StopAtTools,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)
set_default_openai_client(AsyncOpenAI(base_url=sys.argv[1], max_retries=0), use_for_tracing=False)
# The answer must end by itself: the library takes one that was cut for an error.
SETTINGS = ModelSettings(temperature=0, max_tokens=200, extra_body={"stop": ["e"]})
CALLS = ModelSettings(
    temperature=0, max_tokens=300, tool_choice="required", parallel_tool_calls=False, extra_body={"seed": 3}
)


@function_tool
def light(place: Literal["hall", "barn"]) -> str:
    """Whether there is light."""
    return f"light in the {place}"


async def main() -> dict[str, Any]:
    scribe = Agent(name="scribe", instructions="You are a scribe.", model="chat", model_settings=SETTINGS)
    whole = await Runner.run(scribe, "And God made")
    streamed = Runner.run_streamed(scribe, "And God made")
    kinds = [event.data.type async for event in streamed.stream_events() if event.type == "raw_response_event"]
    again = await Runner.run(scribe, [*whole.to_input_list(), {"role": "user", "content": "And then?"}])
    lamp = Agent(
        name="lamp", model="chat", tools=[light], model_settings=CALLS,
        tool_use_behavior=StopAtTools(stop_at_tool_names=["light"]),
    )  # fmt: skip
    called = await Runner.run(lamp, "Is it dark?")
    usage = whole.context_wrapper.usage
    return {
        "whole": whole.final_output,
        "streamed": streamed.final_output,
        "kinds": kinds,
        "again": again.final_output,
        "called": called.final_output,
        "usage": [usage.input_tokens, usage.output_tokens],
    }


print(json.dumps(asyncio.run(main())))
