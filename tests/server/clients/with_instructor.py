"""What instructor's users write, in each of the ways in which it gets an object from a model. Argument: the URL."""

import json
import sys
from typing import Literal

import instructor
import openai
from pydantic import BaseModel, ConfigDict, Field


class Report(BaseModel):
    """The weather."""

    model_config = ConfigDict(extra="forbid")

    city: Literal["Oslo", "Lima"]
    degrees: int = Field(ge=-50, le=50)


client = openai.OpenAI(base_url=sys.argv[1], max_retries=0)
messages = [{"role": "user", "content": "And God made"}]
found = {}
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    made = instructor.from_openai(client, mode=mode).create(
        model="chat", messages=messages, response_model=Report, max_tokens=300, max_retries=0, temperature=0.8, seed=4
    )
    found[mode.name] = made.model_dump(mode="json")
parts = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA).create_partial(
    model="chat", messages=messages, response_model=Report, max_tokens=300, max_retries=0, temperature=0.8, seed=4
)
every = [part.model_dump(mode="json") for part in parts]
print(json.dumps({**found, "parts": len(every), "last": every[-1]}))
