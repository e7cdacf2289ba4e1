"""The CRD of ModelRoutes: complete, closed, and every rule refuses invalid ModelRoutes (real API server)."""

import copy
from typing import Any

import pytest
import yaml

from slipway_contracts.api.reading import encoded, read
from slipway_contracts.model_routes.spec import ModelRouteSpec, names_of
from testkit import ROOT
from testkit.cluster.api import GROUP_PATH, Answer, Api
from tests.crds.schema import ROUTE_FILE, version, walk

MATCH: dict[str, Any] = {
    "headers": [{"name": "X-Tier", "exact": "gold"}, {"name": "x-app", "prefix": "ide-"}],
    "tenants": ["team-a", "qa-*"],
    "promptBytes": {"max": 8000},
    "promptTokens": {"min": 1, "max": 2000},
    "hasTools": False,
    "hasImages": False,
    "hasCode": True,
    "time": {"start": "22:00", "end": "06:00", "days": ["Mon"], "timeZone": "America/Argentina/Buenos_Aires"},
}
SPEC: dict[str, Any] = {
    "model": "chat",
    "aliases": ["gpt-4o", "team:chat"],
    "responseModel": "Public",
    "sampling": {"defaults": {"temperature": 0.7, "topP": 0.9}, "caps": {"maxTokens": 1024, "choices": 1}},
    "rules": [
        {"name": "gold", "matches": [MATCH], "backendRefs": [{"name": "large", "namespace": "models"}]},
        {
            "name": "rest",
            "backendRefs": [{"name": "a", "weight": 90}, {"name": "b", "kind": "ModelRoute", "weight": 10}],
        },
    ],
}


def dry_run(api: Api, spec: dict[str, Any], name: str = "chat") -> Answer:
    body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelRoute", "metadata": {"name": name}, "spec": spec}
    return api.post(f"{GROUP_PATH}/namespaces/default/modelroutes", body, dryRun="All", fieldValidation="Strict")


def changed(**fields: Any) -> dict[str, Any]:
    return {**copy.deepcopy(SPEC), **fields}


def matched(**fields: Any) -> dict[str, Any]:
    return changed(rules=[{"name": "one", "matches": [fields], "backendRefs": [{"name": "a"}]}])


def led(*refs: dict[str, Any]) -> dict[str, Any]:
    return changed(rules=[{"name": "one", "backendRefs": list(refs)}])


def rule(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "backendRefs": [{"name": "a"}], **fields}


def test_every_field_is_described_and_nothing_is_open() -> None:
    for path, node in walk(version(ROUTE_FILE)["schema"]["openAPIV3Schema"]):
        assert path == "metadata" or node["description"].rstrip().endswith("."), path
        assert "x-kubernetes-preserve-unknown-fields" not in node, path


@pytest.mark.integration
@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({}, "spec.rules"),
        (changed(rules=[]), "spec.rules"),
        (changed(rules=[rule(f"r{n}", matches=[{"hasTools": True}]) for n in range(65)]), "spec.rules"),
        (changed(rules=[rule("a"), rule("a")]), "spec.rules[1]"),
        (changed(rules=[rule("a"), rule("b")]), "write it last"),
        (changed(rules=[rule("a", matches=[]), rule("b")]), "write it last"),
        (changed(rules=[rule("A")]), "spec.rules[0].name"),
        (changed(rules=[rule("a", matches=[{}] * 5)]), "spec.rules[0].matches"),
        (changed(model="a/b"), "spec.model"),
        (changed(model=""), "spec.model"),
        (changed(aliases=["a b"]), "spec.aliases[0]"),
        (changed(aliases=["a", "a"]), "spec.aliases[1]"),
        (changed(aliases=[f"a{n}" for n in range(9)]), "spec.aliases"),
        (changed(responseModel="public"), "spec.responseModel"),
        (changed(sampling={"defaults": {"temperature": 3}}), "spec.sampling.defaults.temperature"),
        (changed(sampling={"caps": {"maxTokens": 0}}), "spec.sampling.caps.maxTokens"),
        (led(), "spec.rules[0].backendRefs"),
        (led({"name": "a", "weight": 99}), "write weights that are 100 together"),
        (led({"name": "a"}, {"name": "b"}), "write weights that are 100 together"),
        (led({"name": "a", "weight": 101}, {"name": "b", "weight": -1}), "spec.rules[0].backendRefs[1].weight"),
        (led({"name": "a", "kind": "Service"}), "spec.rules[0].backendRefs[0].kind"),
        (led({"name": "a", "namespace": "A"}), "spec.rules[0].backendRefs[0].namespace"),
        (matched(headers=[{"name": "x-a"}]), "write one of them"),
        (matched(headers=[{"name": "x-a", "exact": "a", "prefix": "a"}]), "write one of them"),
        (matched(headers=[{"name": "x a", "exact": "a"}]), "name of an HTTP header"),
        (matched(headers=[{"name": "Authorization", "prefix": "Bearer"}]), "rules do not match credentials"),
        (matched(headers=[{"name": "x", "exact": "a"}] * 5), "matches[0].headers"),
        (matched(tenants=["*a"]), "matches[0].tenants[0]"),
        (matched(promptBytes={}), "write min, max or both"),
        (matched(promptTokens={"min": 2, "max": 1}), "min must not be above max"),
        (matched(time={"start": "24:00"}), "matches[0].time.start"),
        (matched(time={"start": "08:00", "end": "08:00"}), "two times"),
        (matched(time={"days": ["Monday"]}), "matches[0].time.days[0]"),
        (matched(time={"timeZone": "../etc/passwd"}), "matches[0].time.timeZone"),
    ],
)
def test_invalid_routes_are_refused_by_field(api: Api, spec: dict[str, Any], field: str) -> None:
    answer = dry_run(api, spec)
    assert answer.status == 422 and field in answer.message, answer.message


@pytest.mark.integration
def test_unknown_fields_and_long_names_are_refused(api: Api) -> None:
    answer = dry_run(api, matched(regex="a+"))
    assert answer.status == 400 and "regex" in answer.message
    answer = dry_run(api, SPEC, "a" * 64)
    assert answer.status == 422 and "metadata.name may have at most 63 characters" in answer.message


@pytest.mark.integration
def test_what_the_api_server_accepts_is_read_as_it_was_written(api: Api) -> None:
    answer = dry_run(api, SPEC)
    assert answer.ok, answer.message
    spec = read(ModelRouteSpec, encoded(answer.body["spec"]))
    assert names_of("chat", spec) == ("chat", "gpt-4o", "team:chat")
    (gold, rest), match = spec.rules, spec.rules[0].matches[0]
    assert (match.tenants, match.prompt_bytes and match.prompt_bytes.max) == (("team-a", "qa-*"), 8000)
    assert match.time is not None and match.time.time_zone == "America/Argentina/Buenos_Aires"
    assert [(ref.kind, ref.weight) for ref in rest.backend_refs] == [("ModelDeployment", 90), ("ModelRoute", 10)]
    assert gold.backend_refs[0].namespace == "models"


@pytest.mark.integration
def test_the_largest_route_is_accepted(api: Api) -> None:
    """The API server refuses a CRD whose rules may cost too much: so the bounds are those of its estimate, too."""
    header = {"name": "x" * 128, "exact": "a" * 256}
    match = {"headers": [header] * 4, "tenants": [f"{n:02}" + "t" * 62 for n in range(16)]}
    refs = [{"name": f"{n}" + "a" * 252, "weight": 12 + 4 * (n == 7)} for n in range(8)]
    rules = [{"name": f"r{n}", "matches": [match] * 4, "backendRefs": refs} for n in range(64)]
    answer = dry_run(api, {"rules": rules})
    assert answer.ok, answer.message


@pytest.mark.integration
def test_the_route_of_the_example_is_accepted(api: Api) -> None:
    shown = yaml.safe_load((ROOT / "examples" / "model-route.yaml").read_text())
    answer = dry_run(api, shown["spec"], shown["metadata"]["name"])
    assert answer.ok, answer.message
