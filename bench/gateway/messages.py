"""What is sent to the peers: a chat completion, the same as a stream, a row of a classic model."""

import json
from dataclasses import dataclass

from bench.predict.models import MODELS, protocol_body
from bench.predict.programs import INFER as INFER_PATH


@dataclass(frozen=True, slots=True)
class Message:
    """The path and the body of a POST."""

    path: str
    body: bytes


def _chat(**more: object) -> Message:
    parts = (("system", "You are a helpful assistant."),
             ("user", "Say hello to the person who reads this, in one short line."))  # fmt: skip
    fields = {"model": "m", "user": "user-1234", "max_tokens": 128, "temperature": 0.2}
    fields |= {"messages": [{"role": role, "content": text} for role, text in parts], **more}
    return Message("/v1/chat/completions", json.dumps(fields).encode())


CHAT, STREAM = _chat(), _chat(stream=True)
CLASSIC = MODELS["mlp"]
PREDICT = Message(INFER_PATH, protocol_body(CLASSIC))
