"""The table of conditions is the only list of them: documents, columns, Events and bounds follow from it."""

import ast
import importlib
import inspect
import itertools
import pkgutil
from collections.abc import Iterator
from dataclasses import replace

import pytest
import yaml

from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.planning import conditions
from slipway_operator.planning.conditions import table
from slipway_operator.planning.conditions.condition_type import ConditionType
from testkit import ROOT
from tests.support.conditions import NOW

OPERATOR = ROOT / "operator" / "slipway_operator"
WORDS = yaml.load((ROOT / "docs" / "status.yaml").read_text(), yaml.CSafeLoader)
CRD = yaml.load((ROOT / "crds" / "modeldeployments.yaml").read_text(), yaml.CSafeLoader)
# Those that sum up others report no problem of their own.
REPORTING = [kind for kind in table.TABLE if kind.bad_when != "Never"]
RANKED = sorted((kind for kind in table.TABLE if kind.rank is not None), key=lambda kind: kind.rank or 0)
# Makers of conditions: of ModelDeployments (by their types alone), of Tenants, ModelPools, ModelRoutes and Experiments.
MAKERS = {
    "planning/conditions/transitions.py",
    "planning/tenants.py",
    "planning/pools.py",
    "planning/model_routes.py",
    "planning/experiments.py",
}
BY_TYPE = {"planning/conditions/condition_type.py", "planning/reporting/refused.py"}


def problem(kind: ConditionType, reason: str = "") -> Condition:
    """A condition of this type that reports a problem, with a reason of its own."""
    return Condition(kind.name, kind.bad_when, reason or f"Of{kind.name}", "why", NOW)


def test_the_table_has_each_type_of_its_package_once() -> None:
    modules = [
        importlib.import_module(f"{conditions.__name__}.{item.name}")
        for item in pkgutil.iter_modules(conditions.__path__)
    ]
    declared = {value.name for module in modules for value in vars(module).values() if isinstance(value, ConditionType)}
    assert declared == set(table.TYPES) and len(table.TABLE) == len(table.TYPES) > 10


def test_each_type_is_documented_with_reasons() -> None:
    """And nothing else is: tests/support/model_cluster.py holds the reasons that plans write against the same words."""
    documented = {kind: entry for kind, entry in WORDS["conditions"].items() if entry["says"] and entry["reasons"]}
    assert set(documented) == set(table.TYPES)
    page = (ROOT / "docs" / "status.md").read_text()
    assert [kind.name for kind in table.TABLE if f"| `{kind.name}` |" not in page] == []


def test_no_object_has_more_conditions_than_a_status_has_room_for() -> None:
    """api/fitting.py would cut the first ones without a word."""
    status = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert len(table.TABLE) <= status["properties"]["conditions"]["maxItems"]


@pytest.mark.parametrize("kind", REPORTING, ids=lambda kind: kind.name)
def test_a_problem_is_shown_in_the_column_or_declared_without_a_rank(kind: ConditionType) -> None:
    shown = problem(kind)
    assert table.is_problem(shown) and table.is_problem(replace(shown, status="Unknown"))
    fine = replace(shown, status="False" if kind.bad_when == "True" else "True")
    assert not table.is_problem(fine) and table.reason([fine]) is None
    assert table.reason([shown]) == (None if kind.rank is None else shown.reason)
    assert [table.reason([problem(kind, reason)]) for reason in kind.starting] == [None] * len(kind.starting)


@pytest.mark.parametrize("kind", [kind for kind in table.TABLE if kind not in REPORTING], ids=lambda kind: kind.name)
def test_what_sums_up_other_conditions_is_no_problem_besides_them(kind: ConditionType) -> None:
    """No column, no Event and no metric has it: each would repeat what the other condition says."""
    shown = replace(problem(kind), status="True")
    assert not table.is_problem(shown) and table.reason([shown]) is None
    assert not list(table.events((), [shown]))


def test_the_column_shows_the_most_specific_problem() -> None:
    assert len({kind.rank for kind in RANKED}) == len(RANKED)
    for specific, other in itertools.combinations(RANKED, 2):
        assert table.reason([problem(other), problem(specific)]) == problem(specific).reason
    shown = [kind.name for kind in RANKED]
    first, last = shown.index("Accepted"), shown.index("UnknownField")
    assert first == 0 and shown.index("CanaryHealthy") < shown.index("Available") < shown.index("Ready") < last


@pytest.mark.parametrize("kind", [kind for kind in table.TABLE if kind.event], ids=lambda kind: kind.name)
def test_a_new_problem_is_one_event_that_is_documented(kind: ConditionType) -> None:
    reasons = WORDS["conditions"][kind.name]["reasons"] | WORDS["causes"]
    problems = [problem(kind, reason) for reason in reasons]
    events = [list(table.events((), [shown])) for shown in problems]
    announced = {(event.type, event.reason) for listed in events for event in listed}
    assert announced and announced <= {("Warning", reason) for reason in WORDS["events"]}
    assert max(map(len, events)) == 1
    assert not any(list(table.events([shown], [shown])) for shown in problems), "what stays is no Event again"


@pytest.mark.parametrize("kind", [kind for kind in REPORTING if not kind.event], ids=lambda kind: kind.name)
def test_a_type_without_a_rule_has_no_event(kind: ConditionType) -> None:
    reasons = WORDS["conditions"][kind.name]["reasons"]
    assert not any(list(table.events((), [problem(kind, reason)])) for reason in reasons)


def test_no_module_makes_a_condition_besides_the_types() -> None:
    """A condition of another type would have no rank, no words and no room."""
    assert {name for name, called in _calls() if called == "Condition"} <= MAKERS
    assert {name for name, called in _calls() if called == "condition"} - MAKERS == BY_TYPE
    assert all(name.startswith("planning/conditions/") for name, called in _calls() if called == "ConditionType")


def _calls() -> Iterator[tuple[str, str]]:
    """Module and name of each call of a maker of conditions in the operator."""
    texts = ((path, path.read_text()) for path in sorted(OPERATOR.rglob("*.py")))
    for path, text in texts:
        if "ondition" in text:  # most modules know none, and need no parsing
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    yield str(path.relative_to(OPERATOR)), node.func.id


def test_what_is_decided_without_a_valid_spec_needs_none() -> None:
    """Such a condition reads what serves; one that reads other fields of the object would judge the refused spec."""
    sources = {kind.name: inspect.getsource(kind.decide) for kind in table.WITHOUT_SPEC}
    assert sources and [name for name, source in sources.items() if "facts.obj" in source] == []
