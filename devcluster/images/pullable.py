"""Whether images can be pulled here; checked once a day at most, since a registry out of reach costs seconds."""

from __future__ import annotations

import json
import time

from devcluster import pins
from devcluster.engine.engine import Engine
from devcluster.places import Places, write_whole

_ASK_WITHIN_S = 8
_GOOD_FOR_S = 24 * 3600


def can_pull(places: Places, engine: Engine) -> bool:
    """True when the node image is there or its registry answers for it."""
    if engine.has_image(pins.KIND_NODE_IMAGE):
        return True
    remembered = _remembered(places, engine)
    if remembered is not None:
        return remembered
    answer = engine.succeeds("manifest", "inspect", full_name(pins.KIND_NODE_IMAGE, engine.name), timeout=_ASK_WITHIN_S)
    write_whole(places.cache / "registry.json", json.dumps({engine.name: answer, "asked": time.time()}))
    return answer


def full_name(image: str, engine: str) -> str:
    """podman wants the default registry spelled out, docker knows it (pure)."""
    return image if engine == "docker" else f"docker.io/{image if '/' in image else f'library/{image}'}"


def _remembered(places: Places, engine: Engine) -> bool | None:
    path = places.cache / "registry.json"
    if not path.exists():
        return None
    record = json.loads(path.read_text())
    if time.time() - record["asked"] > _GOOD_FOR_S or engine.name not in record:
        return None
    return bool(record[engine.name])
