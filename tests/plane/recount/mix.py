"""What clients send: requests by kind, at random, as bytes (pure but for the generator that it is given)."""

import json
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

# Of models with these names all numbers are exact: their servers do not fail, and their clients do not leave.
PAID, PLAIN = "paid", "plain"
# Its servers fail, so that gateways send further attempts. Clients of the last one leave.
BROKEN, LEAVES = "broken", "leaves"
MODELS = (PAID, PLAIN, BROKEN, LEAVES)
STRICT = (PAID, PLAIN)
UNKNOWN = "unknown"  # what gateways call the model of a request that they cannot read
INPUT_TOKENS, OUTPUT_TOKENS = 7, 5  # that servers report
_CHAT, _TEXT, _EMBEDDING = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
_LETTERS = 'etaoin shrdlu — ж漢🙂\\"\t'


class Sample(NamedTuple):
    """What a client writes at once or in two parts, and what it expects.

    `responses`: how many. `tokens`: of input and output that a whole response of status 200 costs its tenant.
    `leaves_s`: when the client closes its connection, whatever has come; None: it waits.
    """

    parts: tuple[bytes, ...]
    model: str
    kind: str
    payer: str = ""
    responses: int = 1
    tokens: tuple[int, int] = (0, 0)
    leaves_s: float | None = None


# Kind → (share in 10,000, model). What a server does for it: `server.py`.
_SERVED: dict[str, tuple[int, str]] = {
    "ok": (6000, PAID),
    "embedding": (700, PAID),
    "chunked": (120, PAID),
    "stream": (200, PAID),
    "long": (40, PAID),
    "404": (100, PAID),
    "500": (40, PAID),
    "plain": (1400, PLAIN),
    "prediction": (300, PLAIN),
    "no-usage": (100, PLAIN),
    "empty": (60, PLAIN),
    "loop": (60, PLAIN),
    "cut": (60, PLAIN),
    "error-in-200": (30, PLAIN),
    "text": (40, PLAIN),
    "close": (60, PLAIN),
    "slow": (2, PLAIN),
    "no-text": (20, PLAIN),
    "pipelined": (60, PLAIN),
    "in-parts": (60, PLAIN),
    "chunked-request": (40, PLAIN),
    "closing": (60, PLAIN),
    "503": (40, BROKEN),
    # Gateways take a lost connection for an engine that died of a request, and such a request waits for a trial.
    "reset": (8, BROKEN),
    "half": (8, BROKEN),
    "broken-stream": (8, BROKEN),
    "left": (80, LEAVES),
    "left-at-once": (40, LEAVES),
}
# Bytes that no server gets.
_UNREADABLE: dict[str, int] = {
    "bad-json": 40,
    "no-model": 30,
    "unknown-model": 40,
    "two-lengths": 20,
    "garbage": 20,
    "half-request": 30,
}
# After these the gateway serves the rest of a connection by Python. So the client closes it, and most others are served
# by the fast lane.
STRAYS = frozenset({"chunked-request", "in-parts", "pipelined", "no-text", *_UNREADABLE})
_KINDS = (*_SERVED, *_UNREADABLE)
_SHARES = [*(share for share, _ in _SERVED.values()), *_UNREADABLE.values()]


def samples(random: Random, count: int, keys: Sequence[tuple[str, str]]) -> list[Sample]:
    """Requests of all kinds. `keys`: names of two tenants with their API keys; none: requests need none."""
    return [_sample(random, kind, keys) for kind in random.choices(_KINDS, _SHARES, k=count)]


def _sample(random: Random, kind: str, keys: Sequence[tuple[str, str]]) -> Sample:
    # The first tenant, which has limits, sends a tenth.
    payer, key = random.choices(keys, [1, 9])[0] if keys else ("", "")
    if kind in _UNREADABLE:
        return _unreadable(random, kind, key)
    model = _SERVED[kind][1]
    path, body = _body(random, kind, model)
    if kind == "no-text":
        body = body.replace(b"xxx", b"x\xffx")
    whole = _message(random, path, body, f"{model}.{kind}", key, kind)
    tokens = (INPUT_TOKENS, 0 if kind == "embedding" else OUTPUT_TOKENS) if model == PAID else (0, 0)
    sample = Sample((whole,), model, kind, payer, tokens=tokens)
    if kind == "pipelined":
        return sample._replace(parts=(whole + whole,), responses=2)
    if kind == "in-parts":
        cut = random.randrange(1, len(whole))
        return sample._replace(parts=(whole[:cut], whole[cut:]))
    if model == LEAVES:
        return sample._replace(leaves_s=0.0 if kind == "left-at-once" else random.uniform(0, 0.05))
    return sample


def _body(random: Random, kind: str, model: str) -> tuple[str, bytes]:
    if kind == "prediction":
        return f"/v2/models/{model}/infer", json.dumps({"inputs": [random.random() for _ in range(4)]}).encode()
    # A usage is plausible only for a text that is long enough, and now and then one is longer than a read.
    size = random.choice((60, 60, 60, 200, 900, 5000)) if random.random() < 0.99 else random.randrange(90_000)
    text = "".join(random.choices(_LETTERS, k=50)) + "x" * size
    if random.random() < 0.5:
        # A system prompt that others have too.
        text = f"You are helper {random.randrange(20)}. " * random.choice((1, 30, 200)) + text
    name = model if random.random() < 0.8 else f"default/{model}"
    fields: dict[str, object] = {"model": name}
    if kind == "embedding":
        return _EMBEDDING, json.dumps(fields | {"input": text}).encode()
    path = _CHAT if random.random() < 0.7 else _TEXT
    fields |= {"messages": [{"role": "user", "content": text}]} if path == _CHAT else {"prompt": text}
    if random.random() < 0.4:
        fields["user"] = f"user-{random.randrange(5000)}"
    if random.random() < 0.3:
        fields["max_tokens"] = random.randrange(OUTPUT_TOKENS, 200)
    if kind in ("stream", "broken-stream"):
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    items = list(fields.items())
    random.shuffle(items)
    return path, json.dumps(dict(items), ensure_ascii=random.random() < 0.5).encode()


def _message(random: Random, path: str, body: bytes, want: str, key: str, kind: str) -> bytes:
    lines = ["Host: gateway.example", f"x-want: {want}", "Content-Type: application/json"]
    if kind == "chunked-request":
        lines.append("Transfer-Encoding: chunked")
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    else:
        lines.append(f"Content-Length: {len(body)}")
    if key:
        lines.append(f"Authorization: Bearer {key}")
    elif random.random() < 0.2:
        lines.append(f"Authorization: Bearer sk-{random.randrange(300)}")
    if random.random() < 0.3:
        lines.append(f"X-Session-Id: session-{random.randrange(3000)}")
    if random.random() < 0.1:
        lines.append(f"X-Request-Id: mine-{random.getrandbits(64):x}")
    if kind == "closing":
        lines.append("Connection: close")
    random.shuffle(lines)
    return f"POST {path} HTTP/1.1\r\n".encode() + "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _unreadable(random: Random, kind: str, key: str) -> Sample:
    if kind == "garbage":
        return Sample((random.randbytes(random.randrange(1, 200)) + b"\r\n\r\n",), UNKNOWN, kind)
    bodies = {
        "bad-json": b'{"model":"plain",',
        "no-model": b'{"prompt":"a"}',
        "unknown-model": b'{"model":"other","prompt":"a"}',
    }
    body = bodies.get(kind, b'{"model":"plain","prompt":"a"}')
    whole = _message(random, _TEXT, body, "none.none", key, kind)
    if kind == "two-lengths":
        whole = whole.replace(b"Content-Length:", b"Content-Length: 3\r\nContent-Length:", 1)
    if kind == "half-request":
        return Sample((whole[: random.randrange(1, len(whole))],), UNKNOWN, kind, leaves_s=random.uniform(0, 0.05))
    return Sample((whole,), UNKNOWN, kind)
