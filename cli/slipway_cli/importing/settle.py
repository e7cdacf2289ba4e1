"""Fields of a ModelDeployment that do not go together, after an import has set each by itself (pure)."""

import re

from slipway_cli.importing.adapters import settle_room
from slipway_cli.importing.fields import Unusable
from slipway_cli.importing.manifest import Imported
from slipway_cli.importing.vllm_args import IMAGE

_CLASSIC = ("predict", "classify", "rerank")
_DOWNLOADED = ("hf://", "https://", "s3://", "gs://", "az://", "oci://")
_WITH_SECRET = ("hf://", "s3://", "gs://", "az://", "oci://")
_MOST_NODES_NAME = 28


def settle(made: Imported) -> None:
    """Make the spec one that the API takes, with notes. Raises Unusable where it cannot be."""
    _engine(made)
    _classic(made)
    _source(made)
    if not settle_room(made):
        made.loras.clear()
    args = made.get("engine.args") or []
    if made.get("adapters") and (
        lora := [one for one in args if re.match(r"--(lora|(enable|max)[-_](loaded[-_]|cpu[-_])?lora)", one)]
    ):
        raise Unusable(
            f"{lora[0][:60]} does not go with adapters: remove it, because the operator writes such arguments"
        )
    if (made.get("engine.parallelism.nodes") or 1) > 1 and len(made.name) > _MOST_NODES_NAME:
        raise Unusable(f"metadata.name is {made.name!r}: with several nodes it has up to {_MOST_NODES_NAME} characters")
    resource = made.get("resources.accelerator.resource") or ""
    count = made.get("resources.accelerator.count") or 0
    if resource.startswith("nvidia.com/mig-") and count > 1:
        raise Unusable(f"{resource}: {count} MIG devices of a pod: an engine uses one: write a larger profile")


def _engine(made: Imported) -> None:
    """slipway-server uses one device: a model on several goes to vLLM."""
    several = (made.get("resources.accelerator.count") or 0) > 1 or made.get("engine.parallelism")
    if several and made.get("engine.type") is None and made.get("model.task") in (None, "auto", "generate", "embed"):
        made.put("engine.type", "vllm")
        made.put("engine.image", IMAGE)
        made.notes.append(f"spec.engine: several devices need vllm, because slipway-server uses one: {IMAGE}")


def _classic(made: Imported) -> None:
    if made.get("model.task") not in _CLASSIC:
        made.drop("batching")
        return
    for path in (
        "resources.accelerator",
        "model.dtype",
        "model.maxModelLen",
        "engine.parallelism",
        "model.quantization",
    ):
        if made.drop(path) is not None:
            made.notes.append(f"spec.{path}: left out: task {made.get('model.task')} runs on CPUs, by slipway-server")


def _source(made: Imported) -> None:
    """Credentials and space are for models that are downloaded."""
    uri: str = made.get("model.uri") or ""
    if not uri.startswith(_DOWNLOADED) and made.drop("resources.storage") is not None:
        made.notes.append("spec.resources.storage: left out: nothing is downloaded")
    if not uri.startswith("az://"):
        made.drop("model.objectStore")
    secret = made.get("model.secretRef")
    if secret and not uri.startswith("hf://") and "key" in secret:
        # The token is of no use for this source; the engine may need it for something else.
        made.drop("model.secretRef")
        env = [*(made.get("engine.env") or []), {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}}]
        made.put("engine.env", list({one["name"]: one for one in env}.values()))
    elif secret and not uri.startswith(_WITH_SECRET):
        made.drop("model.secretRef")
        made.notes.append(f"spec.model.secretRef: left out: {uri.partition('://')[0]}:// has no credentials")
    if made.get("model.revision") and not uri.startswith("hf://"):
        revision = made.drop("model.revision")
        made.notes.append(f"spec.model.revision: {revision[:80]} is left out: it is for hf://")
