"""The alerts of docs/alerts.yaml: as rules for Prometheus with the recordings that they read, and as docs/alerts.md."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
WORDS = ROOT / "docs" / "alerts.yaml"
RULES = ROOT / "charts" / "slipway" / "files" / "alerts.yaml"
PAGE = ROOT / "docs" / "alerts.md"
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
LEVELS = (("namespace", "name", "objective"), ("namespace", "name", "revision", "objective"))
SEVERITIES = {"critical": "look now", "warning": "look today", "info": "look when there is time"}

Rule = dict[str, Any]

_HEADER = """\
# Alerts

Generated from `docs/alerts.yaml` by `python docs/generate.py`; do not edit.

The chart has them as a PrometheusRule (`metrics.prometheusRule.enabled`). Without the Prometheus operator load
[alerts.yaml](../charts/slipway/files/alerts.yaml) and [rules.yaml](../charts/slipway/files/rules.yaml) yourself.
`metrics.prometheusRule.disabledAlerts` leaves some out, and `metrics.prometheusRule.runbookUrl` is where your copy of
this page is: the `runbook_url` of each alert is its section there.

- Severities: {severities}.
- An alert whose series do not exist is silent: without an exporter of GPU metrics there is none on GPUs. Of what
  reports nothing at all there are SlipwayGatewayMissing and SlipwayOperatorNotLeading.
- `promtool` runs each alert on series with which it fires and on series with which it does not (`make extended`).

| alert | severity | for |
|---|---|---|
"""


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they are."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def words() -> list[dict[str, Any]]:
    """The groups of docs/alerts.yaml."""
    found: list[dict[str, Any]] = yaml.load(WORDS.read_text(), yaml.CSafeLoader)["groups"]
    return found


def page() -> str:
    """The page for people on call: a section for each alert."""
    groups = words()
    severities = ", ".join(f"`{name}`: {text}" for name, text in SEVERITIES.items())
    rows = [f"| [{one['alert']}](#{anchor(one)}) | {one['severity']} | {one['for']} |" for one in _alerts(groups)]
    sections = [part for group in groups for part in _sections(group)]
    return _HEADER.format(severities=severities) + "\n".join([*rows, *sections]) + "\n"


def rules() -> str:
    """The file of rules."""
    groups = [
        {"name": "slipway-slo", "interval": "30s", "rules": [*_burn_rates(), _cache_hits()]},
        *({"name": group["name"], "rules": list(map(_rule, group["alerts"]))} for group in words()),
    ]
    head = (
        "# Generated from docs/alerts.yaml by `python docs/generate.py`; do not edit. docs/alerts.md explains them.\n"
    )
    return head + yaml.dump({"groups": groups}, Dumper=_Dumper, sort_keys=False, width=10_000)


def anchor(alert: Rule) -> str:
    """The section of an alert in the page."""
    return str(alert["alert"]).lower()


def _alerts(groups: list[dict[str, Any]]) -> Iterator[Rule]:
    return (alert for group in groups for alert in group["alerts"])


def _rule(alert: Rule) -> Rule:
    return {
        "alert": alert["alert"],
        "expr": alert["expr"].strip(),
        "for": alert["for"],
        "labels": {"severity": alert["severity"]},
        "annotations": {"summary": alert["summary"], "runbook_url": f"docs/alerts.md#{anchor(alert)}"},
    }


def _burn_rates() -> Iterator[Rule]:
    """How many times too fast the error budget is spent, for deployments and for revisions, over each window."""
    for labels in LEVELS:
        by = ", ".join(labels)
        for window in WINDOWS:
            requests = f"sum by ({by}) (rate(slipway_slo_requests_total[{window}]))"
            bad = f'sum by ({by}) (rate(slipway_slo_requests_total{{outcome="bad"}}[{window}]))'
            budget = "(1 - max by (namespace, name, objective) (slipway_slo_target_ratio))"
            yield {
                "record": f"{'_'.join(labels)}:slipway_slo_burn:rate{window}",
                "expr": f"{bad} / ({requests} > 0) / on (namespace, name, objective) group_left () {budget}",
            }


def _cache_hits() -> Rule:
    hits, queries = (
        f'sum by (namespace, name) (rate(vllm:prefix_cache_{name}_total{{revision!=""}}[1h]))'
        for name in ("hits", "queries")
    )
    return {"record": "namespace_name:slipway_prefix_cache_hits:ratio1h", "expr": f"{hits} / ({queries} > 0)"}


def _sections(group: dict[str, Any]) -> Iterator[str]:
    yield f"\n## {group['name'].removeprefix('slipway-').capitalize()}\n\n{group['says']}"
    for alert in group["alerts"]:
        lasts = "" if alert["for"] == "0m" else f", after {alert['for']}"
        yield f"\n### {alert['alert']}\n\n*{alert['severity'].capitalize()}{lasts}.* {alert['means'].strip()}"
        yield f"```\n{alert['expr'].strip()}\n```"
        yield f"- **Look.** {alert['look'].strip()}\n- **Do.** {alert['do'].strip()}"
