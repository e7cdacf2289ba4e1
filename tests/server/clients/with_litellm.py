"""What litellm's users write. Arguments: the URLs of a chat model and of an encoder."""

import asyncio
import json
import sys

import litellm

chat_url, encoder_url = sys.argv[1:]
here = {"model": "hosted_vllm/chat", "api_base": chat_url}
messages = [{"role": "system", "content": "You are a scribe."}, {"role": "user", "content": "And God made"}]
parameters = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["days"],
    "additionalProperties": False,
}
tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
schema = {"name": "days", "schema": parameters, "strict": True}

whole = litellm.completion(**here, messages=messages, temperature=0, max_tokens=24)
by_openai = litellm.completion(
    model="openai/chat", api_base=chat_url, messages=messages, temperature=0, max_completion_tokens=24
)
chunks = list(
    litellm.completion(
        **here, messages=messages, temperature=0, max_tokens=24, stream=True, stream_options={"include_usage": True}
    )
)
rebuilt = litellm.stream_chunk_builder(chunks, messages=messages)
later = asyncio.run(litellm.acompletion(**here, messages=messages, temperature=0, max_tokens=24))
# Under its name for vLLM it takes `additionalProperties` out of tools, and this model would fill them without an end.
called = litellm.completion(
    model="openai/chat",
    api_base=chat_url,
    messages=messages,
    tools=tools,
    tool_choice="required",
    parallel_tool_calls=False,
    seed=3,
    max_tokens=200,
)
call = called.choices[0].message.tool_calls[0]
structured = litellm.completion(
    **here, messages=messages, response_format={"type": "json_schema", "json_schema": schema}, max_tokens=100
)
text = litellm.text_completion(
    model="text-completion-openai/chat", api_base=chat_url, prompt="In the beginning", temperature=0, max_tokens=12
)
vectors = litellm.embedding(
    model="hosted_vllm/minilm", api_base=encoder_url, input=["a king", "a queen", "two pieces of bread"]
)
errors = []
for wrong in (
    {"model": "hosted_vllm/other"},
    {"temperature": 9},
    {"messages": [{"role": "user", "content": "x" * 9000}]},
):
    try:
        litellm.completion(**{**here, "messages": messages, **wrong}, max_tokens=4)
    except litellm.exceptions.APIError as error:
        errors.append([type(error).__name__, error.status_code])
    except Exception as error:
        errors.append([type(error).__name__, getattr(error, "status_code", None)])
print(
    json.dumps(
        {
            "whole": whole.choices[0].message.content,
            "by_openai": by_openai.choices[0].message.content,
            "finish": whole.choices[0].finish_reason,
            "usage": [whole.usage.prompt_tokens, whole.usage.completion_tokens],
            "streamed": rebuilt.choices[0].message.content,
            "chunks": len(chunks),
            "later": later.choices[0].message.content,
            "call": [call.function.name, json.loads(call.function.arguments)],
            "call_finish": called.choices[0].finish_reason,
            "structured": json.loads(structured.choices[0].message.content),
            "text": text.choices[0].text,
            "vectors": [item["embedding"] for item in vectors.data],
            "errors": errors,
        }
    )
)
