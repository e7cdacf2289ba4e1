"""What langchain-openai's users write. Arguments: the URLs of a chat model and of an encoder."""

import asyncio
import json
import sys
from typing import Annotated

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

chat_url, encoder_url = sys.argv[1:]
messages = [SystemMessage("You are a scribe."), HumanMessage("And God made")]


class Report(BaseModel):
    """The weather."""

    city: str = Field(max_length=12)
    degrees: int = Field(ge=-50, le=50)


@tool
def weather(days: Annotated[int, Field(ge=1, le=9)]) -> str:
    """The weather of the next days."""
    return f"cold for {days} days"


model = ChatOpenAI(model="chat", base_url=chat_url, temperature=0, max_tokens=24)
whole = model.invoke(messages)
streamed = list(model.stream(messages, stream_usage=True))
counted = model.bind(logprobs=True, top_logprobs=2).invoke(messages)
batch = model.batch([messages, messages])
later = asyncio.run(model.ainvoke(messages))
free = ChatOpenAI(model="chat", base_url=chat_url, temperature=0.8, seed=5, max_tokens=200)
report = free.with_structured_output(Report, method="json_schema").invoke(messages)
calling = free.bind_tools([weather], tool_choice="weather", strict=True).invoke(messages)
call = calling.tool_calls[0]
goes_on = model.invoke([*messages, calling, ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])])
text = OpenAI(model="chat", base_url=chat_url, temperature=0, max_tokens=12).invoke("In the beginning")
embeddings = OpenAIEmbeddings(model="minilm", base_url=encoder_url, check_embedding_ctx_length=False)
vectors = embeddings.embed_documents(["a king", "a queen", "two pieces of bread"])
print(
    json.dumps(
        {
            "whole": whole.content,
            "usage": whole.usage_metadata,
            "finish": whole.response_metadata["finish_reason"],
            "streamed": "".join(chunk.content for chunk in streamed),
            "chunks": len(streamed),
            "streamed_usage": next(chunk.usage_metadata for chunk in reversed(streamed) if chunk.usage_metadata),
            "logprobs": len(counted.response_metadata["logprobs"]["content"]),
            "batch": [one.content for one in batch],
            "later": later.content,
            "report": report.model_dump(),
            "call": call,
            "goes_on": goes_on.content,
            "text": text,
            "vectors": vectors,
        }
    )
)
