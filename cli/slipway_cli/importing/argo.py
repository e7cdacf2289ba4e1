"""Argo Rollouts' Rollout of a model server as a ModelDeployment (pure).

https://argo-rollouts.readthedocs.io: "Specification". The steps have the same names here.
"""

import re
from typing import Any

from slipway_cli.importing.fields import Fields, Unusable, check
from slipway_cli.importing.manifest import Imported, new, put_replicas, put_uri
from slipway_cli.importing.pods import (
    put_drain,
    put_env,
    put_env_from,
    put_placement,
    put_resources,
    put_volumes,
)
from slipway_cli.importing.vllm_args import put_args, put_image

Step = dict[str, Any]

_MOST_STEPS = 50
_DELAYS = {"scaleDownDelaySeconds": 86_400, "abortScaleDownDelaySeconds": 86_400}
_PROBES = (
    "name",
    "ports",
    "imagePullPolicy",
    "readinessProbe",
    "livenessProbe",
    "startupProbe",
    "securityContext",
    "lifecycle",
)
_DURATION = re.compile(r"(?=.*[0-9])([0-9]{1,5}h)?([0-9]{1,5}m)?([0-9]{1,6}s)?", re.ASCII)
_MOST_PERCENT = re.compile(r"(100|[1-9]?[0-9])%", re.ASCII)


def rollout(obj: Fields, uri: str = "", workloads: dict[tuple[str, str], Any] | None = None) -> Imported:
    """The ModelDeployment of a Rollout.

    Args:
        obj: The Rollout.
        uri: The model, where the container's arguments do not name it.
        workloads: Deployments for workloadRef, by namespace and name.

    Raises:
        Unusable: there is no model, or a field is none.
    """
    made = new(obj.child("metadata"), "Rollout")
    spec = obj.child("spec")
    put_replicas(made, spec.number("replicas"), None, "spec.replicas")
    _deadline(made, spec)
    spec.skip("selector", "revisionHistoryLimit", "minReadySeconds", "restartAt", "rollbackWindow")
    made.put("paused", spec.flag("paused") or None)
    if "rollbackWindow" in spec:
        made.notes.append("spec.rollbackWindow: not mapped: a ModelDeployment has one of its own")
    strategy = spec.child("strategy")
    if "canary" in strategy and "blueGreen" in strategy:
        raise Unusable("spec.strategy has canary and blueGreen: remove one of them")
    if "canary" in strategy:
        _canary(made, strategy.child("canary"))
    elif "blueGreen" in strategy:
        _blue_green(made, strategy.child("blueGreen"))
    pod = _pod(made, spec, workloads or {})
    named = _container(made, pod)
    put_uri(made, named or uri, "the model (--uri, or --model of the container's arguments)")
    put_placement(made, pod)
    put_drain(made, pod)
    obj.skip("apiVersion", "kind", "status")
    made.note_rest(obj)
    return made


def _deadline(made: Imported, spec: Fields) -> None:
    seconds = spec.within("progressDeadlineSeconds", 0, 2**31 - 1)
    if seconds is not None and not 5 <= seconds <= 86_400:
        made.notes.append(f"spec.progressDeadlineSeconds: {seconds} is not within 5 and 86400: brought there")
        seconds = min(max(seconds, 5), 86_400)
    made.put("progressDeadlineSeconds", seconds)
    if spec.flag("progressDeadlineAbort") is False or (spec.flag("progressDeadlineAbort") is None and seconds):
        made.notes.append(
            "spec.progressDeadlineAbort: a revision that makes no progress in time is always rejected here"
        )


def _pod(made: Imported, spec: Fields, workloads: dict[tuple[str, str], Any]) -> Fields:
    """The pod of the template, or of the Deployment that workloadRef names."""
    source = spec
    if "workloadRef" in spec:
        reference = spec.child("workloadRef")
        kind, name = reference.text("kind") or "Deployment", reference.text("name") or ""
        reference.skip("apiVersion", "scaleDown")
        deployment = workloads.get((made.namespace, name)) if kind == "Deployment" else None
        if deployment is None:
            raise Unusable(f"spec.workloadRef: {kind[:40]} {name[:63]!r} is not among the files: name its file, too")
        check(deployment)
        whole = Fields(deployment, f"{kind}/{name}")
        source = whole.child("spec")
    template = source.child("template")
    template.skip("metadata")
    return template.child("spec")


def _container(made: Imported, pod: Fields) -> str:
    containers = pod.children("containers")
    if not containers:
        return ""
    first = next((one for one in containers if "vllm" in (one.text("image") or "")), containers[0])
    others = [one for one in containers if one is not first]
    made.notes += [f"{one.path}: a second container is not mapped" for one in others]
    for one in others:
        one.skip(*one.names())
    first.skip(*_PROBES)
    image = first.text("image") or ""
    words = [*first.texts("command"), *first.texts("args")]
    put_resources(made, first.child("resources"))
    put_env(made, first.children("env"))
    put_env_from(made, first.children("envFrom"))
    put_volumes(made, pod.children("volumes"), first.children("volumeMounts"))
    if "vllm" not in image:
        made.notes.append(f"{first.path}.image: {image[:100]} is no image of vLLM: slipway-server runs the model")
        made.notes += [f"{first.path}.args: {' '.join(words)[:200]} is not mapped"] if words else []
        return ""
    put_image(made, image, f"{first.path}.image")
    if words[:2] == ["vllm", "serve"]:
        words = words[2:]
    elif words[:3] == ["python3", "-m", "vllm.entrypoints.openai.api_server"]:
        words = words[3:]
    model = words.pop(0) if words and not words[0].startswith("-") and "/" in words[0] else ""
    model = put_args(made, words, f"{first.path}.args") or model
    return f"hf://{model}" if model and "://" not in model else model


def _canary(made: Imported, canary: Fields) -> None:
    steps, starts = list[Step](), list[int]()  # starts: the number of steps here before each of Argo's
    for step in canary.children("steps"):
        starts.append(len(steps))
        steps += _step(made, step)
    if len(steps) > _MOST_STEPS:
        raise Unusable(f"{canary.path}.steps has {len(steps)} steps: a ModelDeployment has up to {_MOST_STEPS}")
    weights = [one["setWeight"] for one in steps if "setWeight" in one]
    if weights != sorted(weights):
        raise Unusable(f"{canary.path}.steps: the weights of a ModelDeployment rise: {', '.join(map(str, weights))}")
    made.put("strategy.canary.steps", steps, f"{canary.path}.steps")
    _surge(made, canary)
    for name, most in _DELAYS.items():
        made.put(f"strategy.canary.{name}", _delay(made, canary, name, most))
    if "analysis" in canary:
        _background(made, canary.child("analysis"), starts, len(steps))
    canary.skip("maxUnavailable", "canaryService", "stableService", "pingPong", "antiAffinity")
    canary.skip("scaleDownDelayRevisionLimit", "minPodsPerReplicaSet", "replicaProgressThreshold")
    _beside(made, canary)


def _beside(made: Imported, canary: Fields) -> None:
    if canary.flag("dynamicStableScale"):
        made.notes.append(f"{canary.path}.dynamicStableScale: not mapped: stable keeps its pods until the promotion")
    for name in ("canaryMetadata", "stableMetadata"):
        if name in canary:
            canary.skip(name)
            made.notes.append(f"{canary.path}.{name}: not mapped: the operator labels pods by revision")
    if "trafficRouting" in canary:
        _routing(made, canary.child("trafficRouting"))


def _background(made: Imported, analysis: Fields, starts: list[int], count: int) -> None:
    """The analysis beside the steps. Its first one is counted without those that were left out."""
    background = _analysis(made, analysis)
    if (number := analysis.within("startingStep", 0, 2**31 - 1)) is not None:
        background["startingStep"] = starts[number] if number < len(starts) else max(count - 1, 0)
    made.put("strategy.canary.analysis", background)


def _routing(made: Imported, routing: Fields) -> None:
    most = routing.within("maxTrafficWeight", 1, 2**31 - 1)
    if most not in (None, 100):
        raise Unusable(f"{routing.path}.maxTrafficWeight is {most}: weights of a ModelDeployment are percent")
    routing.skip(*routing.names())
    made.notes.append(f"{routing.path}: not needed: Slipway's gateways split the traffic")


def _surge(made: Imported, canary: Fields) -> None:
    surge = canary.quantity("maxSurge")
    if surge is None:
        return
    whole = surge.isascii() and surge.isdecimal() and len(surge) < 6
    if not whole and not _MOST_PERCENT.fullmatch(surge):
        raise Unusable(f"{canary.path}.maxSurge is {surge[:20]!r}: write for example 1 or 25%")
    if whole and int(surge) > 10_000:
        raise Unusable(f"{canary.path}.maxSurge is {surge}: it is 0 to 10000")
    made.put("strategy.capacity.maxSurge", int(surge) if whole else surge, f"{canary.path}.maxSurge")


def _delay(made: Imported, fields: Fields, name: str, most: int) -> int | None:
    seconds = fields.within(name, 0, 2**31 - 1)
    if seconds is not None and seconds > most:
        made.notes.append(f"{fields.at(name)}: {seconds} is above the most: {most}")
        return most
    return seconds


def _step(made: Imported, step: Fields) -> list[Step]:
    """The steps that one of Argo's becomes: one, or none with a note."""
    if len(step.names()) > 1:
        raise Unusable(f"{step.path} has {', '.join(step.names())[:100]}: a step is one of them")
    if "setWeight" in step:
        return [{"setWeight": step.within("setWeight", 0, 100)}]
    if "pause" in step:
        duration = step.child("pause").quantity("duration")
        return [{"pause": {"duration": _duration(duration, step.path)} if duration else {}}]
    if "setCanaryScale" in step:
        return _scale(made, step.child("setCanaryScale"))
    if "setHeaderRoute" in step:
        return _header_route(made, step.child("setHeaderRoute"))
    if "setMirrorRoute" in step:
        return _mirror_route(made, step.child("setMirrorRoute"))
    if "analysis" in step:
        return [{"analysis": {**_analysis(made, step.child("analysis")), "maxDuration": "30m"}}]
    if "pause" in step.empty():
        return [{"pause": {}}]
    names = ", ".join(step.names())[:100] or "an empty step"
    step.skip(*step.names())
    made.notes.append(f"{step.path}: {names} is not mapped")
    return []


def _scale(made: Imported, scale: Fields) -> list[Step]:
    found: Step = {
        name: number
        for name, most in (("replicas", 10_000), ("weight", 2**31 - 1))
        if (number := scale.within(name, 0, most)) is not None
    }
    if scale.flag("matchTrafficWeight"):
        found = {"matchTrafficWeight": True}
    if len(found) > 1:
        raise Unusable(f"{scale.path} has replicas and weight: write one of them")
    if not found or found.get("replicas") == 0 or found.get("weight") == 0:
        made.notes.append(f"{scale.path}: without pods a revision proves nothing: left out")
        return []
    if found.get("weight", 0) > 100:
        made.notes.append(f"{scale.path}.weight: {found['weight']} percent is above the most: 100")
        found["weight"] = 100
    return [{"setCanaryScale": found}]


def _header_route(made: Imported, route: Fields) -> list[Step]:
    name, matches = route.text("name"), []
    if not name:
        raise Unusable(f"{route.at('name')} is missing")
    for item in route.children("match"):
        value = _value(item.child("headerValue"))
        header = item.text("headerName")
        if not value or not header:
            made.notes.append(f"{item.path}: a header is compared by exact or prefix alone: the step is left out")
            return []
        matches.append({"headerName": header, "headerValue": value})
    return [{"setHeaderRoute": {"name": name} | ({"match": matches} if matches else {})}]


def _mirror_route(made: Imported, route: Fields) -> list[Step]:
    name, percent, items = route.text("name"), route.within("percentage", 0, 100), route.children("match")
    if not name:
        raise Unusable(f"{route.at('name')} is missing")
    matches = []
    for item in items:
        headers = item.child("headers")
        values = {key: _value(headers.child(key)) for key in headers.names()}
        if len(items) > 1 or "method" in item or "path" in item or not all(values.values()):
            item.skip(*item.names())
            made.notes.append(
                f"{item.path}: requests are chosen by exact or prefix of headers alone: the step is left out"
            )
            return []
        matches = [{"headerName": key, "headerValue": value} for key, value in values.items()]
    if percent == 0:
        made.notes.append(f"{route.path}.percentage: 0 copies nothing: the step is left out")
        return []
    step: Step = {"name": name} | ({"percentage": percent} if percent else {}) | ({"match": matches} if matches else {})
    return [{"setMirrorRoute": step}]


def _value(found: Fields) -> Step | None:
    values = {name: text for name in ("exact", "prefix", "regex") if (text := found.text(name))}
    return values if len(values) == 1 and "regex" not in values else None


def _analysis(made: Imported, analysis: Fields) -> Step:
    names = [one.text("templateName") or "" for one in analysis.children("templates")]
    for one in analysis.children("templates"):
        one.skip("clusterScope")
    analysis.skip("args", "dryRun", "measurementRetention", "analysisRunMetadata")
    made.notes.append(
        f"{analysis.path}: {', '.join(names)[:100] or 'its templates'} are of Argo: llm-default judges here; write an "
        "AnalysisTemplate of slipway.dev for your own metrics (docs/judge.md)"
    )
    return {"templates": [{"templateName": "llm-default"}]}


def _blue_green(made: Imported, found: Fields) -> None:
    seconds = found.within("autoPromotionSeconds", 0, 2**31 - 1)
    # With autoPromotionSeconds Argo switches after them whatever autoPromotionEnabled says.
    ours: Step = {"autoPromotionEnabled": found.flag("autoPromotionEnabled") is not False or bool(seconds)}
    if seconds:
        ours["autoPromotionSeconds"] = _delay(made, found, "autoPromotionSeconds", 604_800)
    for name, most in _DELAYS.items():
        if (number := _delay(made, found, name, most)) is not None:
            ours[name] = number
    preview = found.within("previewReplicaCount", 0, 10_000)
    if preview:
        ours["previewReplicaCount"] = preview
    elif preview == 0:
        made.notes.append(f"{found.path}.previewReplicaCount: 0 means all pods, as in Argo")
    made.put("strategy.blueGreen", ours)
    for name in ("prePromotionAnalysis", "postPromotionAnalysis"):
        if name in found:
            ours[name] = {**_analysis(made, found.child(name)), "maxDuration": "30m"}
    found.skip("activeService", "previewService", "antiAffinity", "maxUnavailable", "scaleDownDelayRevisionLimit")
    found.skip("previewMetadata", "activeMetadata")


def _duration(text: str, path: str) -> str:
    """Argo's duration, a number of seconds or 1h30m, in the form that a ModelDeployment takes."""
    if text.isascii() and text.isdecimal() and len(text) <= 6:
        return f"{int(text)}s"
    if not _DURATION.fullmatch(text):
        raise Unusable(f"{path}.pause.duration is {text[:40]!r}: write for example 30s, 10m or 1h30m")
    return text
