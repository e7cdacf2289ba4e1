"""Which tool a manifest is of, and its ModelDeployments and ModelAdapters (pure)."""

from typing import Any

from slipway_cli.importing import argo, kserve, kubeai, llm_inference_service, production_stack
from slipway_cli.importing.adapters import adapters_of
from slipway_cli.importing.fields import Fields, Unusable, check
from slipway_cli.importing.manifest import DEPLOYMENT, Imported
from slipway_cli.importing.settle import settle

KINDS = (
    "InferenceService, LLMInferenceService (serving.kserve.io), Rollout (argoproj.io), Model (kubeai.org), "
    "LoraAdapter (production-stack.vllm.ai)"
)
Workloads = dict[tuple[str, str], Any]  # Deployments that Rollouts take their pods from, by namespace and name


class Unknown(Unusable):
    """A manifest of a kind that is not read."""


def convert(document: Any, uri: str = "", workloads: Workloads | None = None) -> list[Imported]:
    """The ModelDeployments and ModelAdapters of one document of YAML.

    Args:
        document: What the YAML holds.
        uri: The model of a Rollout that does not name it.
        workloads: Deployments for the workloadRef of a Rollout.

    Raises:
        Unknown: it is of no tool that is known.
        Unusable: it cannot be converted; the message names the field.
    """
    check(document)
    obj = Fields(document)
    found = []
    for made in _converted(obj, uri, workloads or {}):
        if made.kind == DEPLOYMENT:
            settle(made)
        found.append(made)
    adapters = [one for made in found for one in _adapters(made)]
    for made in [*found, *adapters]:
        made.check()
    return [*found, *adapters]


def _converted(obj: Fields, uri: str, workloads: Workloads) -> list[Imported]:
    if "servingEngineSpec" in obj:
        return production_stack.values(obj)
    group, kind = (obj.text("apiVersion") or "").partition("/")[0], obj.text("kind") or ""
    match group, kind:
        case "serving.kserve.io", "InferenceService":
            return [kserve.inference_service(obj)]
        case "serving.kserve.io", "LLMInferenceService":
            return [llm_inference_service.llm_inference_service(obj)]
        case "argoproj.io", "Rollout":
            return [argo.rollout(obj, uri, workloads)]
        case "argoproj.io", "AnalysisTemplate" | "ClusterAnalysisTemplate":
            raise Unknown(
                f"{kind} of argoproj.io is not read: write an AnalysisTemplate of slipway.dev with its queries as "
                "metrics (docs/judge.md)"
            )
        case "kubeai.org", "Model":
            return [kubeai.model(obj)]
        case "production-stack.vllm.ai", "LoraAdapter":
            return [production_stack.lora_adapter(obj)]
    raise Unknown(
        f"{kind[:40] or 'this'} of {group[:60] or 'no group'} is not read: {KINDS}, or production-stack's values"
    )


def _adapters(made: Imported) -> list[Imported]:
    return adapters_of(made, made.adapter_prefix) if made.loras else []
