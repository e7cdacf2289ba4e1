"""The ConfigMap deploy/argocd/argocd-cm.yaml: the Lua files beside it, as Argo CD reads them from its configuration."""

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "deploy" / "argocd"
CONFIG = FOLDER / "argocd-cm.yaml"
_GROUP = "slipway.dev"
_HEADER = """\
# Generated from the Lua files in deploy/argocd/slipway.dev by `python docs/generate.py`; do not edit.
# Merge it into Argo CD's own: kubectl -n argocd patch configmap argocd-cm --patch-file deploy/argocd/argocd-cm.yaml
"""
# Commands of people, which the manifests of git do not have.
_IGNORED = {"ModelDeployment": ["/spec/rollout"], "ModelAdapter": ["/spec/rollout"]}


def config() -> str:
    """The text of the ConfigMap."""
    return _HEADER + yaml.dump(_config_map(), Dumper=_Dumper, sort_keys=False, width=1000)


def _config_map() -> dict[str, Any]:
    data: dict[str, str] = {}
    for kind in sorted(path for path in (FOLDER / _GROUP).iterdir() if path.is_dir()):
        data[f"resource.customizations.health.{_GROUP}_{kind.name}"] = (kind / "health.lua").read_text()
        if (kind / "actions").is_dir():
            data[f"resource.customizations.actions.{_GROUP}_{kind.name}"] = _written(_actions(kind / "actions"))
        if pointers := _IGNORED.get(kind.name):
            key = f"resource.customizations.ignoreDifferences.{_GROUP}_{kind.name}"
            data[key] = _written({"jsonPointers": pointers})
    metadata = {"name": "argocd-cm", "labels": {"app.kubernetes.io/part-of": "argocd"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _actions(folder: Path) -> dict[str, Any]:
    scripts = sorted(folder.glob("*/action.lua"))
    definitions = [{"name": path.parent.name, "action.lua": path.read_text()} for path in scripts]
    return {"discovery.lua": (folder / "discovery.lua").read_text(), "definitions": definitions}


def _written(value: dict[str, Any]) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=1000)


class _Dumper(yaml.SafeDumper):
    """Scripts stand as blocks, so that people can read them."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)
