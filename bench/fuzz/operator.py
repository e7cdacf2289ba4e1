"""What the operator does with drawn ModelDeployments, AnalysisTemplates and statuses: it plans, and raises nothing."""

import json
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from slipway_contracts.api.times import format_time
from slipway_gateway.routing.table import Route, parse_route
from slipway_operator.kube.reading import observe
from slipway_operator.model.analysis import template
from slipway_operator.model.cluster.observed import Gateway, Observed
from slipway_operator.model.cluster.plan import Plan
from slipway_operator.model.deployment import spec, status
from slipway_operator.planning.decided import PlanSettings
from slipway_operator.planning.plan import explain, plan

from .crs import Crd, Drawn
from .tally import Tally

Json = dict[str, Any]
CRDS = Path(__file__).resolve().parents[2] / "crds"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = PlanSettings(server_image="slipway-server:1", endpoint="http://gateway.example/v1")
NAME, NAMESPACE = "chat", "team"
SOUND: Json = {
    "model": {"uri": "hf://org/model"},
    "strategy": {
        "canary": {"steps": [{"setWeight": 5}, {"analysis": {"templates": [{"templateName": "t"}]}}, {"pause": {}}]}
    },
}
CHANGED: Json = {**SOUND, "model": {"uri": "hf://org/model", "revision": "v2"}}
HOOK: Json = {"name": "a", "type": "pre-rollout", "url": "http://a.example/x"}
SPECS: tuple[Json, ...] = (
    {"model": {"uri": "hf://org/model"}},
    {**SOUND, "strategy": {**SOUND["strategy"], "hooks": [HOOK]}},
    {"model": {"uri": "hf://org/model"}, "strategy": {"blueGreen": {}}},
    {**SOUND, "autoscaling": {"maxReplicas": 4, "metrics": [{"type": "InFlight", "target": "4"}]}},
    {
        "model": {"uri": "hf://org/model"},
        "engine": {"type": "vllm", "image": "vllm:v0.32.0"},
        "resources": {"accelerator": {"count": 2}, "sharedMemory": "2Gi"},
    },
    {
        "model": {"uri": "pvc://claim/model"},
        "engine": {"type": "custom", "image": "a", "command": ["a"], "custom": {"metrics": {"queued": "a"}}},
    },
)
EVENTS: Json = {"metrics": [{"name": "a", "event": "FirstAttemptError", "share": 0.5, "okBelow": 0.1}]}
PROMETHEUS: Json = {"prometheus": {"address": "http://a.example", "query": "up"}}
MEASURED: Json = {"name": "a", "interval": "1m", "count": 3, "failureLimit": 1, "initialDelay": "1m"}
WEB: Json = {"web": {"url": "http://a.example/{{args.x}}", "jsonPath": "{$.a}", "timeoutSeconds": 5}}
CONTAINER: Json = {"name": "a", "image": "a", "command": ["true"]}
JOB: Json = {"job": {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}}}}}
TEMPLATES: tuple[Json, ...] = (
    {"metrics": [{**MEASURED, "successCondition": "result > 0", "provider": PROMETHEUS}]},
    {
        "metrics": [{**MEASURED, "failureCondition": "result > 0", "provider": WEB}],
        "args": [{"name": "x", "value": "1"}],
    },
    {"metrics": [{"name": "a", "provider": JOB}], "args": [{"name": "x", "value": "1"}]},
    EVENTS,
    {
        "metrics": [{"name": "a", "successCondition": "result > 0", "provider": PROMETHEUS}],
        "args": [{"name": "x", "value": "1"}],
    },
    {"metrics": [{"name": "a", "event": "FirstAttemptError", "share": 0.5}], "vetoes": [{"name": "PodCrashLoop"}]},
)


@cache
def crd(plural: str) -> Crd:
    """Of `modeldeployments`, `analysistemplates` or `analysisruns`."""
    return Crd(yaml.load((CRDS / f"{plural}.yaml").read_text(), yaml.CSafeLoader))


def deployment(spec_drawn: Json, status_drawn: Json | None = None, generation: int = 1) -> Json:
    """A ModelDeployment as the API server would hand it out."""
    obj = crd("modeldeployments").manifest(NAME, NAMESPACE, spec_drawn)
    meta = {"uid": "u", "generation": generation, "creationTimestamp": format_time(NOW), "resourceVersion": "1"}
    return {**obj, "metadata": {**obj["metadata"], **meta}, "status": status_drawn or {}}


def check_spec(drawn: Drawn, tally: Tally) -> None:
    """A spec alone, as the next one of a deployment that runs, and as what `explain` prints."""
    tally.fields.update(drawn.fields)
    parsed = spec.parse(deployment(drawn.value))
    tally.ended(type(parsed).__name__)
    _planned(deployment(drawn.value), Observed())
    running, written = history()[1]
    changed = deployment(drawn.value, written, generation=2)
    after = _planned(changed, running)
    _planned({**changed, "status": status.render(after.status)}, _seen(after, running))
    json.dumps(explain(changed, spec.parse(changed), running, SETTINGS, NOW))


def check_status(drawn: Drawn, tally: Tally) -> None:
    """A status of another writer, over a deployment that is new and over one in a rollout."""
    tally.fields.update(drawn.fields)
    written = drawn.value
    for observed in (Observed(), history()[-1][0]):
        after = _planned(deployment(CHANGED, written, generation=2), observed)
        tally.ended(after.status.phase)
        _planned(deployment(CHANGED, status.render(after.status), generation=2), observed)


def check_template(drawn: Drawn, tally: Tally) -> None:
    """A template alone, and in a rollout that comes to it."""
    tally.fields.update(drawn.fields)
    found = template.found("t", drawn.value)
    tally.ended("problem" if found.problem else "template")
    running, written = history()[1]
    for _ in range(6):  # as far as the analysis, where the template is not refused before
        observed = replace(running, templates={"t": found})
        planned = _planned(deployment(CHANGED, written, generation=2), observed)
        running, written = _seen(planned, running), status.render(planned.status)


@cache
def history() -> list[tuple[Observed, Json]]:
    """What is seen and remembered of a first revision that comes up, and of a second one up to its analysis."""
    found: list[tuple[Observed, Json]] = []
    running = Observed(templates={"t": template.found("t", EVENTS)})
    written: Json = {}
    for generation, wanted in ((1, SOUND), (1, SOUND), *((2, CHANGED),) * 6):
        planned = _planned(deployment(wanted, written, generation), running)
        running, written = _seen(planned, running), status.render(planned.status)
        found.append((running, written))
    return found


@cache
def words() -> tuple[str, ...]:
    """Tokens of the rollout in `history`, and what nearly is one."""
    new, old = history()[-1][1]["rollout"]["revision"], history()[-1][1]["stableRevision"]
    tails = (
        "",
        "/",
        "/1",
        "/2",
        "/1/0",
        "/1/9",
        "/1/x",
        "/x",
        f"/{'9' * 40}",
        f"/1/{'9' * 40}",
        "/-1",
        "/\u00b2",
        f"/{old}",
    )
    return tuple(f"{name}{tail}" for name in (new, old) for tail in tails)


@cache
def specs() -> st.SearchStrategy[Drawn]:
    return crd("modeldeployments").drawn("spec", SPECS, words())


@cache
def statuses() -> st.SearchStrategy[Drawn]:
    bases = (written for _, written in history())
    return crd("modeldeployments").drawn("status", ({}, *bases), words())


@cache
def templates() -> st.SearchStrategy[Drawn]:
    return crd("analysistemplates").drawn("spec", TEMPLATES)


def _planned(obj: Json, observed: Observed) -> Plan:
    """The plan, after everything in it was written as JSON."""
    former = status.parse(obj.get("status"))
    made = plan(obj, spec.parse(obj), former, observed, SETTINGS, NOW)
    written = json.loads(json.dumps(status.render(made.status)))
    back = status.parse(written)
    names = made.status.__dataclass_fields__
    lost = [name for name in names if not _equal_but_cut(getattr(made.status, name), getattr(back, name))]
    route = parse_route({**obj, "status": written})
    assert isinstance(route, Route), f"gateways do not read it: {route.text}"
    assert not lost, f"not what is read back: {[(name, getattr(made.status, name)) for name in lost]}"
    json.dumps([item.manifest for item in (*made.create, made.autoscaler) if item])
    return made


def _equal_but_cut(made: object, back: object) -> bool:
    """Whether they are equal, but for what is written shorter: too long texts of other writers are cut."""
    if isinstance(made, str) and isinstance(back, str):
        return made == back or (len(back) < len(made) and made.startswith(back[:-1]))
    if isinstance(made, tuple) and isinstance(back, tuple):
        return len(made) == len(back) and all(map(_equal_but_cut, made, back))
    if is_dataclass(made) and back is None:  # an object of which nothing is given is not written
        return all(getattr(made, one.name) is None for one in fields(made))
    if is_dataclass(made) and type(made) is type(back):
        return all(_equal_but_cut(getattr(made, one.name), getattr(back, one.name)) for one in fields(made))
    return made == back


def _seen(made: Plan, before: Observed | None = None) -> Observed:
    """A cluster in which a plan was carried out, and in which all pods are ready."""
    known = before or Observed()
    created = [item.manifest for item in made.create]
    kinds = {kind: [one for one in created if one["kind"] == kind] for kind in ("ControllerRevision", "ReplicaSet")}
    snapshots = [observe.snapshot(one, NAME) for one in kinds["ControllerRevision"]]
    ready = [_ready(one) for one in kinds["ReplicaSet"]]
    table = made.status.traffic
    gateway = Gateway("gateway-1", ready=True, reachable=True)
    if table:
        weights = {one.revision: one.weight for one in table.backends}
        gateway = replace(gateway, generation=table.generation, digest=table.digest, weights=weights)
    return Observed(
        snapshots={**known.snapshots, **{one.revision: one for one in snapshots if one}},
        workloads={**known.workloads, **{one.revision: one for one in ready}},
        services=known.services | {one.revision: one.name for one in ready},
        gateways=(gateway,),
        templates=known.templates,
    )


def _ready(replica_set: Json) -> Any:
    count = replica_set["spec"]["replicas"]
    meta = {**replica_set["metadata"], "uid": f"uid-of-{replica_set['metadata']['name']}"}
    return observe.workload(
        {**replica_set, "metadata": meta, "status": {"replicas": count, "readyReplicas": count}}, []
    )
