"""Writes what is derived: the CRDs of the API types, the list of their fields, reference pages. `--check` compares."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import alerts_page  # beside this file
import argocd_config
import chart_crds
import cli_reference
import dashboards
import draw_header
import fields_page
import models_page
import rollouts_page
import settings_page
import status_page
import threat_model_page
import yaml

from slipway_operator.api import crd
from slipway_operator.api.pools.model_pool import ModelPool
from slipway_operator.api.v1alpha1.analysis_run import AnalysisRun
from slipway_operator.api.v1alpha1.analysis_template import AnalysisTemplate
from slipway_operator.api.v1alpha1.experiment import Experiment
from slipway_operator.api.v1alpha1.model_adapter import ModelAdapter
from slipway_operator.api.v1alpha1.model_deployment import ModelDeployment
from slipway_operator.api.v1alpha1.model_route import ModelRoute
from slipway_operator.api.v1alpha1.tenant import Tenant
from slipway_operator.planning.conditions.table import TABLE

ROOT = Path(__file__).resolve().parents[1]
CRD = ROOT / "crds" / "modeldeployments.yaml"
TEMPLATE_CRD = CRD.with_name("analysistemplates.yaml")
RUN_CRD = CRD.with_name("analysisruns.yaml")
TENANT_CRD = CRD.with_name("tenants.yaml")
ADAPTER_CRD = CRD.with_name("modeladapters.yaml")
POOL_CRD = CRD.with_name("modelpools.yaml")
ROUTE_CRD = CRD.with_name("modelroutes.yaml")
EXPERIMENT_CRD = CRD.with_name("experiments.yaml")
FIELDS = ROOT / "operator" / "slipway_operator" / "model" / "deployment" / "spec_fields.py"
BAD_WHEN_TRUE = ROOT / "cli" / "slipway_cli" / "objects" / "bad_when_true.py"
DRAW = ROOT / "server" / "slipway_server" / "kernels" / "c" / "draw.h"
CRDS: dict[Path, type] = {
    CRD: ModelDeployment,
    TEMPLATE_CRD: AnalysisTemplate,
    RUN_CRD: AnalysisRun,
    ADAPTER_CRD: ModelAdapter,
    POOL_CRD: ModelPool,
    ROUTE_CRD: ModelRoute,
    EXPERIMENT_CRD: Experiment,
    TENANT_CRD: Tenant,
}

Node = dict[str, Any]

_HEADER = """\
# ModelDeployment reference

Generated from the API types in `operator/slipway_operator/api`, as `crds/` is, by `make generate`; do not edit.

`kubectl explain modeldeployments.slipway.dev.spec.model` shows the same in a terminal. Use the full name
`modeldeployments.slipway.dev` in scripts: other projects have a kind of the same name. At the prompt `mdep` is enough.
"""

_TEMPLATE_HEADER = """
# AnalysisTemplate reference

Generated from the API types, as `crds/` is. `llm-default`, `llm-release` and `llm-shadow-drift` are there without an
object; one of that name in a namespace takes its place. [The judge](judge.md) explains what the numbers mean.
"""

_RUN_HEADER = """
# AnalysisRun reference

Generated from the API types, as `crds/` is. The operator alone writes AnalysisRuns
([analyses](judge.md#looking-again)). Argo Rollouts has a kind of the same name: use `analysisruns.slipway.dev` in
scripts, or `sar` at the prompt.
"""

_TENANT_HEADER = """
# Tenant reference

Generated from the API types, as `crds/` is. [Tenants and their keys](tenants.md) explains how they are used.
"""

_ROUTE_HEADER = """
# ModelRoute reference

Generated from the API types, as `crds/` is. [Model routes](model-routes.md) explains how they are used.
"""

_EXPERIMENT_HEADER = """
# Experiment reference

Generated from the API types, as `crds/` is. [Experiments](experiments.md) explains how they are used.
"""

_ADAPTER_HEADER = """
# ModelAdapter reference

Generated from the API types, as `crds/` is. [LoRA adapters](adapters.md) explains how they are used. The status has the
fields of a [ModelDeployment's](#status); of pods it has what concerns the adapter: 1 replica, which is ready when it is
loaded.
"""

_POOL_HEADER = """
# ModelPool reference

Generated from the API types, as `crds/` is. [Classic models](predict.md#many-models-in-one-server) explains pools.
"""


def main(arguments: list[str]) -> int:
    """Write the files, or with --check say which are stale."""
    files = outputs()
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    if "--check" in arguments:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale: run `python docs/generate.py`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path])
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


def outputs() -> dict[Path, str]:
    """Every derived file and what it must hold."""
    deployment, template = crd.manifest(ModelDeployment), crd.manifest(AnalysisTemplate)
    others = other_reference(template, _TEMPLATE_HEADER) + other_reference(crd.manifest(Tenant), _TENANT_HEADER)
    others += other_reference(crd.manifest(ModelRoute), _ROUTE_HEADER)
    others += other_reference(crd.manifest(Experiment), _EXPERIMENT_HEADER, parts=("spec", "status"))
    others += other_reference(crd.manifest(ModelPool), _POOL_HEADER)
    others += other_reference(crd.manifest(ModelAdapter), _ADAPTER_HEADER)
    others += other_reference(crd.manifest(AnalysisRun), _RUN_HEADER, parts=("spec", "status"))
    return {
        ROOT / "docs" / "crd.md": reference(deployment) + others,
        alerts_page.PAGE: alerts_page.page(),
        argocd_config.CONFIG: argocd_config.config(),
        alerts_page.RULES: alerts_page.rules(),
        **dashboards.files(),
        ROOT / "docs" / "cli.md": cli_reference.reference(),
        ROOT / "docs" / "models.md": models_page.page(),
        ROOT / "docs" / "server.md": fields_page.page(),
        ROOT / "docs" / "rollouts.md": rollouts_page.page(),
        ROOT / "docs" / "settings.md": settings_page.page(),
        ROOT / "docs" / "status.md": status_page.page(),
        ROOT / "docs" / "threat-model.md": threat_model_page.page(),
        FIELDS: known_fields(deployment),
        BAD_WHEN_TRUE: bad_when_true(),
        DRAW: draw_header.page(),
        **{path: crd.text(kind) for path, kind in CRDS.items()},
        **chart_crds.files(CRDS),
    }


def reference(manifest: Node) -> str:
    """The CRD as Markdown."""
    version = manifest["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    return (
        "\n".join([_HEADER, *_identity(manifest, version), *_columns(version, "mdep"), *_fields(schema)]).rstrip()
        + "\n"
    )


def known_fields(manifest: Node) -> str:
    """Every field that a manifest may have, as a module of the operator."""
    schema = manifest["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    paths = [*schema["properties"], *(path for path, _, _ in _walk(schema["properties"]["spec"], "spec"))]
    listed = "\n".join(f'    "{path}",' for path in paths)
    return f'''"""Fields of a ModelDeployment, as crds/modeldeployments.yaml has them; written by docs/generate.py."""

FIELDS = (
{listed}
)
'''


def bad_when_true() -> str:
    """Conditions whose True is a problem, as a module of the command line, which imports nothing of the operator."""
    listed = "".join(f'        "{kind.name}",\n' for kind in TABLE if kind.bad_when == "True")
    return f'''"""Conditions that report a problem while they are True; written by docs/generate.py."""

BAD_WHEN_TRUE = frozenset(
    {{
{listed}    }}
)
'''


def other_reference(manifest: Node, header: str, parts: Sequence[str] = ("spec",)) -> str:
    """The CRD of another kind as a part of the same page."""
    version = manifest["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    lines = [*_identity(manifest, version), *_columns(version, manifest["spec"]["names"]["shortNames"][0])]
    ruled = ["\n## Rules about the whole object\n", *_rules(schema)] if "x-kubernetes-validations" in schema else []
    text = "\n".join([*lines, *ruled, *(line for part in parts for line in _part(schema, part))]).rstrip() + "\n"
    return header + "\n" + text.replace("\n## ", "\n### ")


def _identity(manifest: Node, version: Node) -> Iterator[str]:
    names = manifest["spec"]["names"]
    yield "| | |\n|---|---|"
    yield f"| apiVersion | `{manifest['spec']['group']}/{version['name']}` |"
    yield f"| kind | `{names['kind']}`, {manifest['spec']['scope'].lower()} |"
    categories = names.get("categories", [])
    shorter = [*names["shortNames"], *categories]
    label = "short name, category" if categories else "short name"
    yield f"| {label} | {', '.join(f'`{name}`' for name in shorter)} |"
    if "subresources" in version:
        yield f"| subresources | {', '.join(f'`{name}`' for name in version['subresources'])} |"
    yield ""


def _columns(version: Node, name: str) -> Iterator[str]:
    yield f"## Columns of `kubectl get {name}`\n"
    yield "| column | where | what |\n|---|---|---|"
    for column in version["additionalPrinterColumns"]:
        shown = "`-o wide`" if column.get("priority") else "always"
        yield f"| {column['name'].upper()} | {shown} | {_cell(column.get('description', 'Age of the object.'))} |"


def _fields(schema: Node) -> Iterator[str]:
    yield from ("\n## Rules about the whole object\n", *_rules(schema))
    for part in ("spec", "status"):
        yield from _part(schema, part)


def _part(schema: Node, part: str) -> Iterator[str]:
    yield f"\n## {part}\n\n{schema['properties'][part]['description']}\n"
    yield "| field | type | default | meaning |\n|---|---|---|---|"
    nodes = list(_walk(schema["properties"][part], part))
    yield from (_row(path, node, required) for path, node, required in nodes)
    ruled = [(part, schema["properties"][part], True), *nodes]
    rules = [(path, list(_rules(node))) for path, node, _ in ruled if "x-kubernetes-validations" in node]
    if rules:
        yield f"\n### Rules of {part}\n"
        yield from (f"`{path}`\n\n" + "\n".join(lines) + "\n" for path, lines in rules)


def _walk(node: Node, path: str) -> Iterator[tuple[str, Node, bool]]:
    """Every field below a node: its path, its schema, whether it must be there. Items of a list are `path[]`."""
    for name, child in node.get("properties", {}).items():
        yield f"{path}.{name}", child, name in node.get("required", ())
        yield from _walk(child, f"{path}.{name}")
    if "items" in node:
        yield from _walk(node["items"], f"{path}[]")


def _row(path: str, node: Node, required: bool) -> str:
    default = f"`{yaml.safe_dump(node['default']).splitlines()[0]}`" if "default" in node else ""
    meaning = _cell(" ".join([*(["**Required.**"] if required else []), node["description"], *_limits(node)]))
    return f"| `{path}` | {_type(node)} | {default} | {meaning} |"


def _type(node: Node) -> str:
    if node.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if node["type"] == "array":
        return f"list of {_type(node['items'])}s"
    if "additionalProperties" in node:
        return f"map of {_type(node['additionalProperties'])}s"
    return node.get("format", "") if node.get("format") == "date-time" else node["type"]


def _limits(node: Node) -> Iterator[str]:
    if "enum" in node:
        yield "One of " + ", ".join(f"`{value}`" for value in node["enum"]) + "."
    least = "above" if node.get("exclusiveMinimum") else "at least"
    bounds = [("minimum", least), ("maximum", "at most")]
    sizes = [
        ("minItems", "at least", "items"),
        ("maxItems", "at most", "items"),
        ("maxProperties", "at most", "entries"),
        ("maxLength", "at most", "characters"),
    ]
    said = [f"{word} {node[key]}" for key, word in bounds if key in node]
    said += [f"{word} {node[key]} {unit}" for key, word, unit in sizes if key in node]
    if said:
        yield ", ".join(said).capitalize() + "."
    if "pattern" in node:
        yield f"Matches `{node['pattern']}`."


def _rules(node: Node) -> Iterator[str]:
    return (f"- {rule['message']}." for rule in node.get("x-kubernetes-validations", ()))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
