"""Argo Rollouts' Rollout of a model server as a ModelDeployment (pure).

https://argo-rollouts.readthedocs.io: "Specification". The steps have the same names here.
"""

from typing import Any

from slipway_cli.importing.fields import Fields, Unusable
from slipway_cli.importing.manifest import (
    Imported,
    new,
    put_env,
    put_placement,
    put_replicas,
    put_resources,
    put_uri,
)
from slipway_cli.importing.vllm_args import put_args, put_image

Step = dict[str, Any]

_BLUE_GREEN = ("scaleDownDelaySeconds", "abortScaleDownDelaySeconds", "previewReplicaCount", "autoPromotionSeconds")
_MOST_SECONDS = 604_800


def rollout(obj: Fields, uri: str = "") -> Imported:
    """The ModelDeployment of a Rollout. `uri`: the model, where the container's arguments do not name it.

    Raises:
        Unusable: there is no model, or a field is none.
    """
    made = new(obj.child("metadata"), "Rollout")
    spec = obj.child("spec")
    put_replicas(made, spec.number("replicas"), None, "spec.replicas")
    made.put("progressDeadlineSeconds", spec.number("progressDeadlineSeconds"))
    spec.skip("selector", "revisionHistoryLimit", "minReadySeconds", "progressDeadlineAbort")
    strategy = spec.child("strategy")
    if "canary" in strategy:
        _canary(made, strategy.child("canary"))
    elif "blueGreen" in strategy:
        _blue_green(made, strategy.child("blueGreen"))
    template = spec.child("template")
    template.skip("metadata")
    pod = template.child("spec")
    named = _container(made, pod)
    put_uri(made, named or uri, "the model (--uri, or --model of the container's arguments)")
    put_placement(made, pod)
    pod.skip("restartPolicy")
    obj.skip("apiVersion", "kind", "status")
    made.note_rest(obj)
    return made


def _container(made: Imported, pod: Fields) -> str:
    containers = pod.children("containers")
    if not containers:
        return ""
    first, *others = containers
    made.notes += [f"{one.path}: a second container is not mapped" for one in others]
    for one in others:
        one.skip(*one.names())
    first.skip("name", "ports", "imagePullPolicy", "readinessProbe", "livenessProbe", "startupProbe")
    image = first.text("image") or ""
    words = [*first.texts("command"), *first.texts("args")]
    put_resources(made, first.child("resources"))
    put_env(made, first.children("env"))
    if "vllm" not in image:
        made.notes.append(f"{first.path}.image: {image[:100]} is no image of vLLM: slipway-server runs the model")
        return ""
    put_image(made, image, f"{first.path}.image")
    if words[:2] == ["vllm", "serve"]:
        words = words[2:]
    model = words.pop(0) if words and not words[0].startswith("-") and "/" in words[0] else ""
    model = put_args(made, words, f"{first.path}.args") or model
    return f"hf://{model}" if model and "://" not in model else model


def _canary(made: Imported, canary: Fields) -> None:
    steps = [one for step in canary.children("steps") for one in _step(made, step)]
    if len(steps) > 50:
        raise Unusable(f"{canary.path}.steps has {len(steps)} steps: a ModelDeployment has up to 50")
    made.put("strategy.canary.steps", steps)
    if (surge := canary.quantity("maxSurge")) is not None:
        made.put("strategy.capacity.maxSurge", int(surge) if surge.isdecimal() else surge)
    for name in ("scaleDownDelaySeconds", "abortScaleDownDelaySeconds"):
        made.put(f"strategy.canary.{name}", canary.number(name))
    analysis = canary.child("analysis")
    if analysis.names():
        made.put("strategy.canary.analysis", _analysis(made, analysis, background=True))
    canary.skip(
        "maxUnavailable", "canaryService", "stableService", "dynamicStableScale", "canaryMetadata", "stableMetadata"
    )
    if "trafficRouting" in canary:
        canary.skip("trafficRouting")
        made.notes.append(f"{canary.path}.trafficRouting: not needed: Slipway's gateways split the traffic")


def _step(made: Imported, step: Fields) -> list[Step]:
    """The steps that one of Argo's becomes: one, or none with a note."""
    if "setWeight" in step:
        weight = step.number("setWeight")
        if weight is None or not 0 <= weight <= 100:
            raise Unusable(f"{step.path}.setWeight is {weight}: it is 0 to 100")
        return [{"setWeight": weight}]
    if "pause" in step:
        duration = step.child("pause").quantity("duration")
        return [{"pause": {"duration": _duration(duration, step.path)} if duration else {}}]
    if "setCanaryScale" in step:
        scale = step.child("setCanaryScale")
        found: Step = {name: number for name in ("replicas", "weight") if (number := scale.number(name)) is not None}
        if scale.flag("matchTrafficWeight"):
            found = {"matchTrafficWeight": True}
        if found.get("replicas") == 0 or found.get("weight") == 0:
            made.notes.append(f"{step.path}.setCanaryScale: without pods a revision proves nothing: left out")
            return []
        return [{"setCanaryScale": found}]
    if "analysis" in step:
        return [{"analysis": _analysis(made, step.child("analysis"))}]
    names = ", ".join(step.names())[:100]
    step.skip(*step.names())
    made.notes.append(f"{step.path}: {names} is not mapped: setHeaderRoute and setMirrorRoute are in docs/rollouts.md")
    return []


def _analysis(made: Imported, analysis: Fields, *, background: bool = False) -> Step:
    names = [one.text("templateName") or "" for one in analysis.children("templates")]
    found: Step = {"templates": [{"templateName": "llm-default"}]}
    if background:
        if (step := analysis.number("startingStep")) is not None:
            found["startingStep"] = step
    else:
        found["maxDuration"] = "30m"
    analysis.skip("args", "dryRun", "measurementRetention", "analysisRunMetadata")
    made.notes.append(
        f"{analysis.path}: {', '.join(names)[:100] or 'its templates'} are of Argo: llm-default judges here; write an "
        "AnalysisTemplate of slipway.dev for your own metrics (docs/judge.md)"
    )
    return found


def _blue_green(made: Imported, found: Fields) -> None:
    ours: Step = {"autoPromotionEnabled": found.flag("autoPromotionEnabled") is not False}
    for name in _BLUE_GREEN:
        if (number := found.number(name)) is not None:
            ours[name] = min(number, _MOST_SECONDS)
    made.put("strategy.blueGreen", ours)
    for name in ("prePromotionAnalysis", "postPromotionAnalysis"):
        if name in found:
            made.spec["strategy"]["blueGreen"][name] = {
                **_analysis(made, found.child(name), background=True),
                "maxDuration": "30m",
            }
    found.skip("activeService", "previewService", "antiAffinity", "maxUnavailable", "scaleDownDelayRevisionLimit")


def _duration(text: str, path: str) -> str:
    """Argo's duration, a number of seconds or 1h30m, in the form that a ModelDeployment takes."""
    if text.isdecimal() and len(text) <= 7:
        return f"{int(text)}s"
    if len(text) > 32 or not text.replace("h", "").replace("m", "").replace("s", "").isdecimal():
        raise Unusable(f"{path}.pause.duration is {text[:40]!r}: write for example 30s, 10m or 1h30m")
    return text
