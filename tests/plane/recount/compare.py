"""What the numbers of clients, servers and a gateway must be (pure)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .mix import LEAVES, MODELS, PAID, STRICT, UNKNOWN

Json = Mapping[str, Any]
_LEFT = "499"  # the status of a request whose client left
_REFUSED = "429"  # of one that is beyond the limits of its tenant


def totals(clients: Sequence[Json]) -> dict[str, Any]:
    """What all clients saw together."""
    sums: dict[str, Any] = {name: Counter() for name in ("sent", "received", "cut", "lost", "left")}
    tokens: dict[str, list[int]] = {}
    for client in clients:
        for name, counts in sums.items():
            counts.update(client[name])
        for payer, more in client["tokens"].items():
            tokens[payer] = [a + b for a, b in zip(tokens.get(payer, [0, 0, 0]), more, strict=True)]
    lost_s = [lost_s for client in clients for lost_s in client["lost_s"]]
    return sums | {"tokens": tokens, "lost_s": lost_s, "stuck": sum(client["stuck"] for client in clients)}


def differences(seen: Json, servers: Sequence[Json], gateway: Json) -> list[str]:
    """All numbers that are not as they must be; none: each request was counted once, and as what it was.

    `seen`: Totals of all clients. `servers`: by port, how many requests of each want. `gateway`: its report.
    """
    return [
        *_ends(seen, gateway),
        *_requests(seen, gateway),
        *_sends(seen, servers),
        *_attempts(servers, gateway),
        *_ledger(seen, gateway),
    ]


def _ends(seen: Json, gateway: Json) -> Iterator[str]:
    """Nothing is left over, nothing failed, and every request of the lane was counted again."""
    metrics = gateway["metrics"]
    for result, count in _by(metrics, "recounts_total", "result").items():
        if result != "same":
            yield f"{count} recounts differ in {result}"
    for kind, count in _by(metrics, "plane_failures_total", "kind").items():
        yield f"{count} failures of the data plane: {kind}"
    if gateway["fast"] != gateway["looks"]:
        yield f"{gateway['fast']} whole responses of the fast lane, of which {gateway['looks']} were counted again"
    for name in ("connections", "inflight", "held_requests", "memory_held_bytes"):
        if rest := sum(value for _, value in metrics.get(name, ())):
            yield f"{name} is {rest} at the end"
    if any(rest := (gateway["running"], seen["stuck"], gateway["waiting_prompts"])):
        yield "{} requests still run, {} clients still wait, {} bytes of prompts wait at endpoints".format(*rest)
    if cut := sum(seen["cut"][model] for model in STRICT):
        yield f"{cut} responses of servers that do not fail were cut"
    if early := sum(lost_s < gateway["drained_s"] for lost_s in seen["lost_s"]):
        yield f"{early} requests to servers that do not fail were lost before the gateway drained"


def _requests(seen: Json, gateway: Json) -> Iterator[str]:
    """What clients received is what was counted, by model, status and, of a whole response, revision."""
    counted: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for labels, value in gateway["metrics"].get("requests_total", ()):
        model = labels["model"] if labels["model"] in MODELS else UNKNOWN
        revision = labels["revision"] if model in STRICT and labels["code"] == "200" else ""
        counted[f"{model}|{revision}|{labels['code']}"] += int(value)
        if model in STRICT and labels["code"] == "200" and labels["outcome"] != "ok":
            outcomes[labels["outcome"]] += int(value)
    received: Counter[str] = Counter()
    for key, count in seen["received"].items():
        model, revision, code = key.split("|")
        received[f"{model}|{revision if model in STRICT and code == '200' else ''}|{code}"] += count
    for outcome, count in outcomes.items():
        yield f"{count} whole responses have the outcome {outcome}"
    for key in sorted(counted.keys() | received.keys()):
        model, _, code = key.split("|")
        if model in (LEAVES, UNKNOWN) or code == _LEFT:
            continue
        if counted[key] != received[key]:
            yield f"{key}: clients received {received[key]}, the gateway counted {counted[key]}"
    yield from _of_those_who_leave(seen, counted, received)


def _of_those_who_leave(seen: Json, counted: Mapping[str, int], received: Mapping[str, int]) -> Iterator[str]:
    """A client that leaves does not know how its request ended: at most that many more are counted."""
    for model in (LEAVES, UNKNOWN):
        ours = {key: count for key, count in counted.items() if key.startswith(f"{model}|")}
        for key, count in received.items():
            if key.startswith(f"{model}|") and ours.get(key, 0) < count:
                yield f"{key}: clients received {count}, the gateway counted {ours.get(key, 0)}"
        whole = sum(count for key, count in received.items() if key.startswith(f"{model}|"))
        most = whole + seen["left"][model] + seen["cut"][model] + seen["lost"][model]
        if not whole <= sum(ours.values()) <= most:
            yield f"{model}: {sum(ours.values())} requests are counted, clients sent {most} and received {whole}"
    for key, count in counted.items():
        model, _, code = key.split("|")
        if code == _LEFT and model not in (LEAVES, UNKNOWN) and count > seen["cut"][model] + seen["lost"][model]:
            yield f"{key}: {count} clients left, though none does"


def _sends(seen: Json, servers: Sequence[Json]) -> Iterator[str]:
    """No request is sent twice to servers that do not fail, and none is lost on its way."""
    refused = sum(count for key, count in seen["received"].items() if key.rpartition("|")[2] == _REFUSED)
    for want, sent in seen["sent"].items():
        got = sum(port.get(want, 0) for port in servers)
        if want.partition(".")[0] in STRICT and not sent - refused - len(seen["lost_s"]) <= got <= sent:
            yield f"{want}: clients sent {sent} requests, servers got {got}"


def _attempts(servers: Sequence[Json], gateway: Json) -> Iterator[str]:
    """What the judge gets: first attempts by revision. Half of the servers are of models that do not fail."""
    own = servers[: len(servers) // 2]
    for number, revision in enumerate(("r1", "r2")):
        half = own[: len(own) // 2] if number == 0 else own[len(own) // 2 :]
        for model in STRICT:
            got = sum(count for port in half for want, count in port.items() if want.startswith(f"{model}."))
            counted = gateway["routes"][f"default/{model}"].get(revision, {}).get("requests", 0)
            if got != counted:
                yield f"{model}, {revision}: servers got {got} requests, and {counted} first attempts are counted"


def _ledger(seen: Json, gateway: Json) -> Iterator[str]:
    """Tokens of whole responses, by tenant, of the model whose clients get them all."""
    booked: dict[str, list[int]] = {}
    for row in gateway["ledger"]:
        if row["model"].rpartition("/")[2] == PAID:
            sums = booked.setdefault(f"{row['tenant']}|{PAID}", [0, 0])
            sums[0] += row["input_tokens"]
            sums[1] += row["output_tokens"]
    paid = {payer: sums[1:] for payer, sums in seen["tokens"].items() if not payer.startswith("|")}
    for payer in sorted(booked.keys() | paid.keys()):
        if booked.get(payer, [0, 0]) != paid.get(payer, [0, 0]):
            yield f"{payer}: clients received {paid.get(payer)} tokens, the ledger has {booked.get(payer)}"


def _by(metrics: Json, name: str, label: str) -> dict[str, int]:
    """A counter by one of its labels."""
    counts: Counter[str] = Counter()
    for labels, value in metrics.get(name, ()):
        counts[labels[label]] += int(value)
    return dict(counts)
