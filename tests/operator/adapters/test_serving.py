"""When a revision of an adapter is ready, what holds it, and what holds the ModelDeployment that serves it."""

from dataclasses import replace

import pytest

from slipway_operator.adapters.serving import facts, hold_of_base, served
from slipway_operator.model.adapter_views import AdapterPod, BaseView, LoadedState
from slipway_operator.model.cluster.observed import Observed, Snapshot, Workload
from slipway_operator.model.cluster.weights import Weights
from slipway_operator.model.inputs.pod_inputs import Model, PodInputs
from slipway_operator.model.labels import POOL_KIND

DIGEST = "sha256:" + "0a" * 32
LOADED, FAILED, LOADING = LoadedState("loaded", DIGEST), LoadedState("failed", "", "r is 64"), LoadedState("loading")
RECORD = Snapshot(
    "aaaaaaaaaa", 1, PodInputs(Model("https://h/a.tar", "support"), base="chat"), "image", 60, 3, name="r"
)
OBSERVED = Observed(
    snapshots={"aaaaaaaaaa": RECORD}, workloads={"aaaaaaaaaa": Workload("aaaaaaaaaa", 1, 1, 0, kind=POOL_KIND)}
)


def view(*states: LoadedState | None, **more) -> BaseView:
    pods = (
        AdapterPod(f"p{number}", "base-1", {("support", "aaaaaaaaaa"): state} if state else {})
        for number, state in enumerate(states)
    )
    return BaseView(stable="base-1", pods=tuple(pods), **more)


def seen(now: BaseView | None, stable: str | None = None) -> Observed:
    return served(OBSERVED, "support.adapter", "chat", now, stable)


@pytest.mark.parametrize(
    ("states", "stable", "ready"),
    [
        ((LOADED, LOADED), None, 1),
        ((LOADED, LOADING), None, 0),
        ((LOADED, None), None, 0),
        ((LOADED, LOADING), "aaaaaaaaaa", 1),
        ((LOADED, FAILED), "aaaaaaaaaa", 1),
        ((None, FAILED), "aaaaaaaaaa", 0),
        ((), None, 0),
        ((), "aaaaaaaaaa", 0),
    ],
)
def test_a_new_revision_is_proved_on_all_pods_and_stable_needs_one(states, stable, ready) -> None:
    assert seen(view(*states), stable).ready("aaaaaaaaaa") == ready


def test_a_revision_that_is_no_entry_is_not_ready() -> None:
    left = {"aaaaaaaaaa": replace(OBSERVED.workloads["aaaaaaaaaa"], desired=0, replicas=0)}
    found = served(replace(OBSERVED, workloads=left), "support.adapter", "chat", view(LOADED), None)
    assert found.ready("aaaaaaaaaa") == 0 and not found.workloads["aaaaaaaaaa"].troubles


def test_only_pods_of_the_stable_base_count() -> None:
    both = view(LOADED)
    both = replace(both, pods=(*both.pods, AdapterPod("new", "base-2", {("support", "aaaaaaaaaa"): FAILED})))
    assert seen(both).ready("aaaaaaaaaa") == 1
    assert seen(replace(both, stable="base-2")).ready("aaaaaaaaaa") == 0
    assert seen(replace(both, stable="")).ready("aaaaaaaaaa") == 0, "before the first one is stable all count"


def test_the_first_digest_that_a_pod_reports_is_recorded_and_no_other_text() -> None:
    assert seen(view(LOADED)).snapshots["aaaaaaaaaa"].weights == Weights(DIGEST)
    assert seen(view(LoadedState("loaded", "x" * 64))).snapshots["aaaaaaaaaa"].weights is None
    pinned = replace(OBSERVED, snapshots={"aaaaaaaaaa": replace(RECORD, weights=Weights("sha256:" + "1" * 64))})
    found = served(pinned, "support.adapter", "chat", view(LOADED), None)
    assert found.snapshots["aaaaaaaaaa"].weights == Weights("sha256:" + "1" * 64)


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (view(LOADED), None),
        (view(LOADED, target="base-2"), "BaseRollingOut"),
        (view(), "DeploymentNotReady"),
        (None, "DeploymentNotReady"),
        (view(LOADED, beyond=frozenset({"support.adapter"}), target="base-2"), "AdaptersLimit"),
        (view(LOADED, waiting=frozenset({"support.adapter"})), "RolloutsLimit"),
        (view(LOADED, beyond=frozenset({"other.adapter"})), None),
    ],
)
def test_what_holds_an_adapter(now, reason) -> None:
    hold = seen(now).hold
    assert (hold.reason if hold else None) == reason


AWAY = LoadedState("waiting", reason="the source is away")


@pytest.mark.parametrize(
    ("state", "reason"), [(FAILED, "AdapterNotLoaded"), (AWAY, "AdapterNotLoaded"), (None, None), (LOADING, None)]
)
def test_the_reason_of_a_pod_is_a_trouble_of_the_revision(state, reason) -> None:
    [*troubles] = seen(view(LOADED, state)).workloads["aaaaaaaaaa"].troubles
    assert [item.reason for item in troubles] == ([reason] if reason else [])


def test_a_new_base_is_held_by_adapters_that_the_stable_one_serves_and_by_no_others() -> None:
    serving = AdapterPod("old", "base-1", {("support", "a"): LOADED, ("broken", "b"): FAILED})
    failing = {("support", "a"): FAILED, ("broken", "b"): FAILED, ("forged", "c"): FAILED}
    now = BaseView("base-1", "base-2", (serving, AdapterPod("new", "base-2", failing)))
    hold = hold_of_base(now)
    assert hold and "cannot load the adapters support: r is 64" in hold.message
    assert "broken" not in hold.message and "forged" not in hold.message
    assert hold_of_base(replace(now, target="")) is None
    assert hold_of_base(replace(now, pods=(serving, AdapterPod("new", "base-2", None)))) is None


def test_what_changes_nothing_reconciles_nothing() -> None:
    first = facts(view(LOADED, LOADED), "support.adapter", [RECORD])
    assert first == facts(view(LOADED, LOADED), "support.adapter", [RECORD])
    others = (view(LOADED, LOADING), view(LOADED), view(LOADED, LOADED, target="x"), view(LOADED, LOADED, generation=2))
    assert all(first != facts(now, "support.adapter", [RECORD]) for now in others)
