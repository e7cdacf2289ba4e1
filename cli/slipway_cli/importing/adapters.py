"""LoRA adapters of other tools as ModelAdapters, and the room for them in their ModelDeployment (pure)."""

import re

from slipway_cli.importing.fields import Unusable
from slipway_cli.importing.manifest import ADAPTER, Imported, put_uri

_VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_SCHEMES = ("hf://", "https://", "s3://", "gs://", "az://", "oci://", "file://")
MOST = 256  # that a pod holds at a time


def adapters_of(base: Imported, prefix: str = "") -> list[Imported]:
    """The ModelAdapters of a deployment's `loras`. `prefix`: what clients write before the adapter's name.

    Raises:
        Unusable: two of them have the same name, or one is none.
    """
    found: dict[str, Imported] = {}
    for name, uri, path in base.loras:
        if not uri.startswith(_SCHEMES):
            base.notes.append(f"{path}: {uri[:200]}: adapters are downloaded from {', '.join(_SCHEMES)}: not mapped")
            continue
        one = adapter(base.name, base.namespace, name, uri, path)
        if one.name in found:
            raise Unusable(f"{path}: two adapters would be the ModelAdapter {one.name}: give them other names")
        if prefix:
            one.put("model.name", f"{prefix}{name}", path)
        found[one.name] = one
    if found:
        room = base.spec.setdefault("adapters", {})
        room["maxLoaded"] = max(room.get("maxLoaded", 0), min(len(found), MOST))
        secret = base.get("model.secretRef")
        if secret and secret.get("key") == "HF_TOKEN":
            base.put("adapters.secretRef.name", secret["name"])
    return list(found.values())


def adapter(base: str, namespace: str, name: str, uri: str, path: str) -> Imported:
    """A ModelAdapter that clients call by `name`. Raises Unusable."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.rpartition("/")[2].lower()).strip("-")
    made = Imported(plain, namespace, kind=ADAPTER)
    made.put("deploymentRef.name", base, path)
    put_uri(made, uri, path)
    short = name.rpartition("/")[2]
    if short != plain:
        made.put("model.name", short, path)
    if short != name:
        made.notes.append(f"{path}: clients send {short}, not {name[:200]}: a name has no slash")
    try:
        made.check()
    except Unusable as error:
        raise Unusable(f"{path}: {error}") from error
    return made


def settle_room(made: Imported) -> bool:
    """Whether a deployment can have adapters; its room for them in the form of its engine."""
    room = made.spec.get("adapters")
    if not room:
        return True
    why = ""
    if (made.get("engine.parallelism.nodes") or 1) > 1:
        why = "pods of several nodes serve none"
    elif made.get("model.task") not in (None, "auto", "generate"):
        why = "they are for models that generate text"
    if why:
        made.drop("adapters")
        made.notes.append(f"spec.adapters: adapters are not mapped: {why}")
        return False
    rank = room.get("maxRank")
    if rank and made.get("engine.type") == "vllm" and rank <= _VLLM_RANKS[-1] and rank not in _VLLM_RANKS:
        room["maxRank"] = next(one for one in _VLLM_RANKS if one >= rank)
    return True
