"""Versions that are bad for real: what is released, the load on it, and the message that must reject it.

Nothing in the product has a switch to fail. Each is a mistake that people make with weights or with the spec, and all
parts are real: gateways count, the operator reads and judges, the rollout goes back.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from e2e import weights
from e2e.faulty_models import DAMAGED_TOKEN
from e2e.page import put_table
from slipway_operator.model.analysis.template import LLM_DEFAULT
from testkit.cluster.deployment import Deployment, Json, canary, model_of
from testkit.load.flow import Shape
from testkit.report import commit, machine

BUILT_IN, WARMED, RELEASE = "llm-default", "warmed", "llm-release"
CLIENTS, COPIES = "clients", "copies"  # whose responses a verdict is about
# The built-in template counts latencies after two minutes; for a model that starts in seconds five are enough.
WARM_UP_S = 5


@dataclass(frozen=True, slots=True)
class Fault:
    """A bad version and how it must end. `message` is a pattern that the message of the rejection must match.

    `shows`: metrics by which the bad version must be worse than stable, the blamed one or not.
    `by_copies`: the same pattern where copies of requests are judged and no client is served.
    """

    name: str
    released: str  # for people
    spec: Json
    message: str
    by_copies: str
    shows: tuple[str, ...] = ()
    reason: str = "AnalysisFailed"
    shape: Shape = field(default_factory=Shape)
    weight: int = 30
    template: str = BUILT_IN

    def change(self, *, copies: bool = False) -> Json:
        """What is edited, in one patch."""
        return {"strategy": strategy_by_copies() if copies else strategy(self.weight, self.template), **self.spec}


@dataclass(frozen=True, slots=True)
class Row:
    """How one ended. Seconds are from the first request that the bad version got to the moment it was rejected."""

    fault: str
    judged: str  # CLIENTS or COPIES
    released: str
    reason: str
    seconds: float | None  # None: it never got one
    copies: int  # of requests that it got until then
    requests: int  # of clients that it got until then
    harmed: int  # bad ones among them, by the metric that is blamed
    failed: int  # that a client saw fail, of all requests


def strategy(weight: int, template: str) -> Json:
    """A weight and an analysis of it; then all requests."""
    analysis = {"templates": [{"templateName": template}], "maxDuration": "10m", "untilVerdict": True}
    steps = canary({"setWeight": weight}, {"analysis": analysis})["canary"]
    return {"canary": steps | {"baselinePod": False}, "capacity": {"maxSurge": 1}}


def strategy_by_copies() -> Json:
    """Copies of all sessions, judged by the built-in template for releases, before clients are served by the ramp."""
    templates = {"templates": [{"templateName": RELEASE}], "maxDuration": "30m"}
    steps = canary({"analysis": templates | {"twinShadow": {"percentage": 100}}}, {"ramp": templates | {"auto": {}}})
    return {"canary": steps["canary"] | {"baselinePod": True}, "capacity": {"maxSurge": 2}}


def template(name: str, **changes: object) -> Json:
    """The built-in template as an object, with these changes."""
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "AnalysisTemplate",
        "metadata": {"name": name},
        "spec": {**LLM_DEFAULT, **changes},
    }


def warmed() -> Json:
    return template(WARMED, minSamples={"canaryRequests": 300, "warmupSeconds": WARM_UP_S})


def spec_of(chat: Deployment, name: str) -> Json:
    """The spec of an AnalysisTemplate, as the API server has it."""
    found = chat.kube.api.find(f"apis/slipway.dev/v1alpha1/namespaces/{chat.namespace}/analysistemplates/{name}")
    return dict(found["spec"])


def _on_claim(folder: str) -> Json:
    return {"model": {"uri": f"{weights.URI}/{folder}", "version": folder}}


# Rates, weights and lengths are such that two cores carry them, with the cluster, and each is found within a minute.
FAULTS = (
    Fault(
        "slow decode",
        "32 layers in place of 3; the answers are the same",
        _on_claim("deeper"),
        r"(itl|ttft): .* evidence e=",
        r"(itl|ttft): more than \d+% slower than its twin in [\d,]+ of [\d,]+ pairs",
        shows=("itl",),
        shape=Shape(rate=8, streamed=1),
        weight=20,
        template=WARMED,
    ),
    Fault(
        "2 % of the requests fail",
        "one row of the embedding is not a number; its token is in 2 % of the prompts",
        _on_claim("poisoned"),
        r"(errors|non-finite): .* evidence e=",
        r"bad: .* on canary alone, 0 on its twin alone",
        shows=("errors", "non-finite"),
        shape=Shape(rate=30, marker=DAMAGED_TOKEN, marked=0.02, streamed=0.1),
    ),
    Fault(
        "garbage",
        "weights as they are before training",
        _on_claim("untrained"),
        r"(repetition|truncated): .* evidence e=",
        r"(bad|truncated): .* on canary alone, \d+ on its twin alone",
        shows=("repetition",),
        # A loop is detected from 256 bytes on; each such answer is hundreds of steps of the engine.
        shape=Shape(rate=4, max_tokens=270),
    ),
    Fault(
        "truncated answers",
        "maxModelLen: 24, and clients that leave the length to the server",
        {"model": {**model_of("v1"), "version": "short", "maxModelLen": 24}},
        r"truncated: .* evidence e=",
        r"truncated: .* on canary alone, \d+ on its twin alone",
        shows=("truncated",),
        shape=Shape(max_tokens=None),
    ),
    Fault(
        "load failure",
        "a weights file that was cut in half",
        {**_on_claim("cut"), "progressDeadlineSeconds": 20},
        r"model\.safetensors",
        r"model\.safetensors",
        reason="ProgressDeadlineExceeded",
    ),
    Fault(
        "memory kill",
        "resources.memory: 128Mi, less than the server needs",
        {
            "model": {**model_of("v1"), "version": "starved"},
            "resources": {"memory": "128Mi"},
            "progressDeadlineSeconds": 30,
        },
        r"OOMKilled|out of memory|signal 9",
        r"OOMKilled|out of memory|signal 9",
        reason="ProgressDeadlineExceeded",
    ),
)


# --- the table --------------------------------------------------------------------------------------------------------


def shortened(sentence: str) -> str:
    """The part of a rejection's sentence that a table has room for."""
    numbers = r"\d+ of \d+ bad \([^)]*\) on canary, \d+ of \d+ bad \([^)]*\) on stable"
    alone = r"[\d,]+ on canary alone, [\d,]+ on its twin alone"
    slower = r"more than \d+% slower than its twin in [\d,]+ of [\d,]+ pairs"
    blamed = re.search(rf"[\w-]+: ({numbers}|{alone}|{slower})", sentence)
    return blamed[0] if blamed else sentence[:160]


def markdown(rows: list[Row]) -> str:
    """For docs/faults.md, in the order of FAULTS."""
    places = {fault.name: place for place, fault in enumerate(FAULTS)}
    lines = [
        f"On {machine()['cpu']}, {machine()['cores']} cores, the whole cluster and the load on it; `{commit()}`.",
        "",
        "| fault | what was released | judged on | rejected with | s | copies | requests | bad | failed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: (row.judged, places[row.fault])):
        seconds = "-" if row.seconds is None else f"{row.seconds:.0f}"
        reason = row.reason.replace("|", "/")
        counts = (row.copies, row.requests, row.harmed, row.failed)
        lines.append(f"| {' | '.join(map(str, (row.fault, row.released, row.judged, reason, seconds, *counts)))} |")
    return "\n".join(lines)


def missing_rows(rows: list[Row]) -> list[str]:
    """Faults that a table of all lacks."""
    every = {f"{fault.name} (judged on {judged})" for fault in FAULTS for judged in (CLIENTS, COPIES)}
    return sorted(every - {f"{row.fault} (judged on {row.judged})" for row in rows})


def put_rows(page: Path, rows: list[Row]) -> None:
    """Replace the table of a page.

    Raises:
        ValueError: when rows are missing, or the page has no place for a table.
    """
    if missing := missing_rows(rows):
        raise ValueError(f"{page} is left as it was: no row for {', '.join(missing)}")
    put_table(page, markdown(rows))


ROOT = Path(__file__).resolve().parents[1]
