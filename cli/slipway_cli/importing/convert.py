"""Which tool a manifest is of, and its ModelDeployments (pure)."""

from typing import Any

from slipway_cli.importing import argo, kserve, kubeai, production_stack
from slipway_cli.importing.fields import Fields, Unusable, check
from slipway_cli.importing.manifest import Imported

KINDS = "InferenceService, LLMInferenceService (serving.kserve.io), Rollout (argoproj.io), Model (kubeai.org)"


def convert(document: Any, uri: str = "") -> list[Imported]:
    """The ModelDeployments of one document of YAML. `uri`: the model of a Rollout that does not name it.

    Raises:
        Unusable: it is of no tool that is known, or cannot be converted; the message names the field.
    """
    check(document)
    obj = Fields(document)
    if "servingEngineSpec" in obj:
        return production_stack.values(obj)
    group, kind = (obj.text("apiVersion") or "").partition("/")[0], obj.text("kind") or ""
    match group, kind:
        case "serving.kserve.io", "InferenceService":
            return [kserve.inference_service(obj)]
        case "serving.kserve.io", "LLMInferenceService":
            return [kserve.llm_inference_service(obj)]
        case "argoproj.io", "Rollout":
            return [argo.rollout(obj, uri)]
        case "kubeai.org", "Model":
            return [kubeai.model(obj)]
    raise Unusable(
        f"{kind[:40] or 'this'} of {group[:60] or 'no group'} is not read: {KINDS}, or production-stack's values"
    )
