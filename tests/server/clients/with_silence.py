"""Reads a stream whose first token comes after a long silence. Arguments: the name of a client, and a URL."""

import json
import sys

client, url = sys.argv[1:]
messages = [{"role": "user", "content": "And God made"}]
request = {"messages": messages, "temperature": 0, "max_tokens": 12, "stream": True}


def openai_python() -> list[str]:
    import openai

    made = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    return [chunk.choices[0].delta.content or "" for chunk in made.chat.completions.create(model="chat", **request)]


def openai_responses() -> list[str]:
    import openai

    made = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    events = made.responses.create(model="chat", input="And God made", temperature=0, max_output_tokens=12, stream=True)
    return [event.delta for event in events if event.type == "response.output_text.delta"]


def langchain() -> list[str]:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="chat", base_url=url, api_key="none", temperature=0, max_tokens=12, max_retries=0)
    return [chunk.content for chunk in model.stream(messages)]


def litellm() -> list[str]:
    import litellm

    chunks = litellm.completion(model="hosted_vllm/chat", api_base=url, num_retries=0, **request)
    return [chunk.choices[0].delta.content or "" for chunk in chunks]


print(json.dumps("".join(globals()[client]())))
