"""The status of ModelRoutes: names, circles, targets that are missing, and namespaces that have to allow it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_contracts.api.reading import encoded, read
from slipway_contracts.model_routes.spec import ModelRouteSpec
from slipway_operator.api.v1alpha1.model_route import ModelRouteStatus
from slipway_operator.model.cluster.names import Standing
from slipway_operator.planning.model_routes import (
    ReferenceGrants,
    RouteWorld,
    crosses,
    events,
    grants_of,
    status,
    unreadable,
)

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
OWNER = "ModelRoute/prod/chat"
OWNED = {"chat": Standing(OWNER, "chat")}
TAKEN = Standing(OWNER, "gpt", "ModelNameTaken", 'the model name "gpt" belongs to b/gpt')
FOREIGN: dict[str, Any] = {"name": "large", "namespace": "models"}


def spec(*refs: dict[str, Any], **match: Any) -> ModelRouteSpec:
    weights = [100, *[0] * (len(refs) - 1)]
    backends = [{**ref, "weight": weight} for ref, weight in zip(refs, weights, strict=True)]
    return read(ModelRouteSpec, encoded({"rules": [{"name": "one", "matches": [match], "backendRefs": backends}]}))


def world(chat: ModelRouteSpec, grants: ReferenceGrants | None = None, **routes: ModelRouteSpec) -> RouteWorld:
    specs = {"prod/chat": chat} | {f"prod/{name}": one for name, one in routes.items()}
    return RouteWorld({"prod/small", "models/large"}, specs, grants or ReferenceGrants())


def reasons(found: ModelRouteStatus) -> dict[str, tuple[str, str]]:
    return {one.type: (one.status, one.reason) for one in found.conditions}


def of(seen: RouteWorld, standings: dict[str, Standing | None] | None = None, **former: Any) -> ModelRouteStatus:
    return status("prod/chat", 3, standings or dict(OWNED), seen, ModelRouteStatus(**former), NOW)


def grant(kind: str = "ModelRoute", namespace: str = "prod", name: str = "", **to: Any) -> dict[str, Any]:
    listed = {"group": "slipway.dev", "kind": "ModelDeployment", **({"name": name} if name else {}), **to}
    return {
        "metadata": {"name": "g", "namespace": "models"},
        "spec": {"from": [{"group": "slipway.dev", "kind": kind, "namespace": namespace}], "to": [listed]},
    }


def test_a_route_in_order_has_its_names_and_targets() -> None:
    found = of(world(spec({"name": "small"})))
    assert (found.observed_generation, found.names, found.granted) == (3, ("chat",), ())
    assert reasons(found) == {"Accepted": ("True", "Accepted"), "ResolvedRefs": ("True", "ResolvedRefs")}
    assert not events(ModelRouteStatus(), found)


@pytest.mark.parametrize(
    ("objects", "granted"),
    [
        ([], False),
        ([grant()], True),
        ([grant(name="large")], True),
        ([grant(name="small")], False),
        ([grant(namespace="test")], False),
        ([grant(kind="HTTPRoute")], False),
        ([grant(group="")], False),
        ([{"metadata": {"namespace": "models"}}], False),
        ([{"metadata": {"namespace": "models"}, "spec": {"from": 1}}, grant()], True),
    ],
)
def test_a_target_of_another_namespace_needs_its_grant(objects: list[dict[str, Any]], granted: bool) -> None:
    found = of(world(spec(FOREIGN), grants_of(objects)))
    assert found.granted == (("ModelDeployment/models/large",) if granted else ())
    assert reasons(found)["ResolvedRefs"] == (("True", "ResolvedRefs") if granted else ("False", "RefNotPermitted"))


def test_a_target_that_is_not_allowed_is_not_said_to_exist_or_not() -> None:
    there, nowhere = (of(world(spec(FOREIGN | {"name": name}))) for name in ("large", "nothing"))
    assert there.conditions[1].message.replace("large", "nothing") == nowhere.conditions[1].message
    no_crd = of(world(spec(FOREIGN), ReferenceGrants(problem="this cluster has no ReferenceGrants")))
    assert "this cluster has no ReferenceGrants" in no_crd.conditions[1].message
    assert crosses("prod/chat", spec(FOREIGN)) and not crosses("prod/chat", spec({"name": "a", "namespace": "prod"}))


def test_a_missing_target_is_named() -> None:
    found = of(world(spec({"name": "small"}, {"name": "gone"}, {"name": "inner", "kind": "ModelRoute"})))
    assert reasons(found)["ResolvedRefs"] == ("False", "BackendNotFound")
    assert "ModelDeployment prod/gone, ModelRoute prod/inner" in found.conditions[1].message
    [event] = events(ModelRouteStatus(), found)
    assert (event.type, event.reason) == ("Warning", "BackendNotFound")


def test_a_circle_a_long_chain_and_an_unknown_zone_are_said() -> None:
    def to(name: str) -> ModelRouteSpec:
        return spec({"name": name, "kind": "ModelRoute"})

    circle = of(world(to("inner"), inner=to("chat")))
    assert reasons(circle)["Accepted"] == ("False", "RouteLoop")
    assert "prod/chat to prod/inner to prod/chat" in circle.conditions[0].message
    deep = of(world(to("b"), b=to("c"), c=to("d"), d=to("e"), e=spec({"name": "small"})))
    assert reasons(deep)["Accepted"] == ("False", "RouteTooDeep")
    zone = of(world(spec({"name": "small"}, time={"timeZone": "Nowhere/Atlantis"})))
    assert reasons(zone)["Accepted"] == ("False", "UnknownTimeZone") and "Atlantis" in zone.conditions[0].message


def test_names_that_are_lost_awaited_or_unknown_are_said() -> None:
    seen = world(spec({"name": "small"}))
    lost = of(seen, {**OWNED, "gpt": TAKEN})
    assert reasons(lost)["Accepted"] == ("False", "ModelNameTaken") and lost.names == ("chat",)
    assert reasons(of(seen, {"chat": None}))["Accepted"] == ("Unknown", "ModelNameNotClaimed")
    away = Standing(OWNER, "chat", "ModelNameNotClaimed", "the API server is away", known=False)
    assert reasons(of(seen, {"chat": away}))["Accepted"] == ("Unknown", "ModelNameNotClaimed")


def test_times_of_transitions_stay_and_each_change_of_a_reason_is_an_event() -> None:
    seen = world(spec({"name": "small"}))
    first = of(seen)
    later = status("prod/chat", 4, dict(OWNED), seen, first, NOW + timedelta(hours=1))
    assert [one.last_transition_time for one in later.conditions] == [NOW, NOW]
    lost = status("prod/chat", 4, {"chat": TAKEN}, seen, first, NOW)
    assert [(one.type, one.reason) for one in events(first, lost)] == [("Warning", "ModelNameTaken")]
    assert [(one.type, one.reason) for one in events(lost, later)] == [("Normal", "Accepted")]
    assert not events(lost, lost)
    broken = unreadable(5, "spec.rules: is missing", later, NOW)
    assert broken.names == ("chat",) and reasons(broken) == {
        "Accepted": ("False", "Invalid"),
        "Stalled": ("True", "Invalid"),
    }


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["from", "to", "group"]), inner),
    max_leaves=6,
)


@given(st.lists(ANYTHING, max_size=3))
def test_grants_that_make_no_sense_grant_nothing(specs: list[Any]) -> None:
    assert not grants_of({"metadata": {"namespace": "models"}, "spec": one} for one in specs).allowed
