"""`python with_anthropic.py BASE_URL`: Anthropic's own client against `/v1/messages`; prints what it got as JSON."""

import json
import sys

from anthropic import Anthropic, BadRequestError, NotFoundError

client = Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
chat = {
    "model": "chat",
    "max_tokens": 24,
    "system": "You are a scribe.",
    "messages": [{"role": "user", "content": "And God made"}],
    "extra_body": {"temperature": 0},
}
weather = {
    "name": "weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Lima"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}

whole = client.messages.create(**chat)
with client.messages.stream(**chat) as stream:
    pieces = list(stream.text_stream)
    streamed = stream.get_final_message()

# Greedy, this small model fills a call with spaces; some of its sampled calls end.
called = chat | {"tools": [weather], "tool_choice": {"type": "tool", "name": "weather"}, "max_tokens": 300}
called["extra_body"] = {"temperature": 1}


def streamed_message():
    with client.messages.stream(**called) as stream:
        return stream.get_final_message()


def ended(create):
    messages = (create() for _ in range(40))
    return next(message for message in messages if message.stop_reason == "tool_use")


call, streamed_call = ended(lambda: client.messages.create(**called)), ended(streamed_message)
use = next(block for block in call.content if block.type == "tool_use")
turns = [
    *chat["messages"],
    {"role": "assistant", "content": [block.model_dump(include={"type", "id", "name", "input"}) for block in [use]]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "rain"}]},
]
later = client.messages.create(**chat | {"messages": turns})
count = client.messages.count_tokens(**{name: chat[name] for name in ("model", "system", "messages")})

errors = []
for changes, kind in (({"model": "other"}, NotFoundError), ({"max_tokens": -1}, BadRequestError)):
    try:
        client.messages.create(**chat | changes)
    except kind as error:
        errors.append([type(error).__name__, error.body["error"]["type"]])

print(
    json.dumps(
        {
            "whole": whole.content[0].text,
            "stop_reason": whole.stop_reason,
            "usage": [whole.usage.input_tokens + whole.usage.cache_read_input_tokens, whole.usage.output_tokens],
            "request_id": whole._request_id,
            "streamed": "".join(pieces),
            "pieces": len(pieces),
            "streamed_usage": [
                streamed.usage.input_tokens + streamed.usage.cache_read_input_tokens,
                streamed.usage.output_tokens,
            ],
            "name": use.name,
            "call": [call.stop_reason, use.input],
            "streamed_call": [streamed_call.stop_reason, streamed_call.content[-1].input],
            "later": later.stop_reason,
            "count": count.input_tokens,
            "errors": errors,
        }
    )
)
