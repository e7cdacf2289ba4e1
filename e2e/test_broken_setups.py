"""Set-ups that are broken in one way each: each status has, within seconds, a reason and what to do.

`--setups-table docs/troubleshooting.md` puts what was seen into that page.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from e2e import broken_setups as broken
from e2e import broken_sources
from e2e.broken_setups import CANARY, MUTATING, SETUPS, TAKEN, Row, Setup
from e2e.broken_sources import REFUSED
from e2e.devices import Devices
from e2e.page import put_table
from testkit.cluster.api import KubeError
from testkit.cluster.deployment import START_S, Deployment, Json
from testkit.cluster.installation import Installation
from testkit.cluster.kube import CRD, Kube
from testkit.until import until

REPORTED_S = 30  # from the mistake to its reason, where no container has to run for it
LOOK_S = 1.0
AT_THE_DOOR = ("denied", "no-webhook", "no-account", "no-priority", "no-runtime", "no-secret", "pod-security")


@dataclass
class Watch:
    """Looks at the ModelDeployments of some namespaces until each has the status that it must."""

    kube: Kube
    namespaces: tuple[str, ...]
    rows: list[Row] = field(default_factory=list)

    def until_reported(self, wanted: list[Setup], begun: float) -> None:
        """Take a row for each; what is missing in the end fails with the present status.

        How long containers take until they fail depends on the machine and on what else it does: START_S is for them.
        """
        silent, limit_s = wanted, START_S if any(broken.runs(setup) for setup in wanted) else REPORTED_S
        while silent:
            seen, seconds = self._statuses(), time.monotonic() - begun
            self.rows += [Row(setup, seconds, _message(setup, seen)) for setup in silent if _is_reported(setup, seen)]
            silent = [setup for setup in silent if not _is_reported(setup, seen)]
            assert not silent or seconds < limit_s, "\n".join(_instead(setup, seen) for setup in silent)
            time.sleep(LOOK_S if silent else 0)

    def _statuses(self) -> dict[str, Json]:
        """Name → status."""
        found = self.kube.api.items(CRD)
        ours = [item for item in found if item["metadata"]["namespace"] in self.namespaces]
        return {item["metadata"]["name"]: item.get("status") or {} for item in ours}


def _condition(setup: Setup, seen: dict[str, Json]) -> Json:
    conditions = seen[setup.name].get("conditions") or ()
    return next((dict(item) for item in conditions if item["type"] == setup.condition), {})


def _message(setup: Setup, seen: dict[str, Json]) -> str:
    return str(_condition(setup, seen).get("message", ""))


def _is_reported(setup: Setup, seen: dict[str, Json]) -> bool:
    """The condition has the reason and all the words, and the column REASON is the same."""
    condition = _condition(setup, seen)
    known = condition.get("status") == "False" and condition["reason"] == setup.reason == seen[setup.name].get("reason")
    return known and all(word in condition["message"] for word in setup.words)


def _instead(setup: Setup, seen: dict[str, Json]) -> str:
    status = seen[setup.name]
    conditions = [
        f"  {one['type']}={one['status']} {one['reason']}: {one['message']}" for one in status.get("conditions", ())
    ]
    wanted = f"{setup.condition}={setup.reason} with {setup.words}"
    return "\n".join(
        [f"{setup.name} does not have {wanted}, but {status.get('reason')}, {status.get('message')}", *conditions]
    )


@pytest.fixture
def served(slipway: Installation) -> list[Setup]:
    """Those that this cluster can be brought into."""
    groups = ("admissionregistration.k8s.io", "resource.k8s.io")
    found = (slipway.kube.kubectl("api-resources", f"--api-group={group}", "-o", "name") for group in groups)
    kinds = " ".join(found).split()
    kinds += [
        item["metadata"]["name"] for item in slipway.kube.api.items("apiextensions.k8s.io/v1/customresourcedefinitions")
    ]
    return [setup for setup in SETUPS if setup.lacks not in kinds and (not setup.needs or setup.needs in kinds)]


@pytest.fixture
def places(slipway: Installation, namespace: str, served: list[Setup]) -> Iterator[dict[str, str]]:
    """Three namespaces, and what is broken in and around them."""
    kube, devices = slipway.kube, Devices(slipway.kube, TAKEN)
    found = {"shared": namespace, "quota": slipway.new_namespace(), "limits": slipway.new_namespace()}
    outside = [*broken.policies(namespace), broken.volume(namespace), broken.tainted_node(namespace)]
    if any(setup.needs == MUTATING for setup in served):
        outside += broken.mutations(namespace)
    try:
        devices.set(1)
        inside = [broken.occupant(slipway.images.server, namespace), *broken.surroundings(**found)]
        inside += broken_sources.store(slipway.images.server, namespace)
        _with_all(kube, [*outside, *inside], "apply")
        _await_policies(kube, namespace, served)
        kube.kubectl("wait", "pod/occupant", "-n", namespace, "--for=condition=PodScheduled", "--timeout=30s")
        kube.kubectl("wait", "pod/store", "-n", namespace, "--for=condition=Ready", "--timeout=60s", timeout_s=70)
        yield found
    finally:
        _with_all(kube, outside, "delete", "--ignore-not-found", "--wait=false")
        devices.remove()
        slipway.drop_namespace(found["quota"])
        slipway.drop_namespace(found["limits"])


def _with_all(kube: Kube, items: list[Json], *verb: str) -> None:
    """One kubectl for objects of several namespaces."""
    kube.kubectl(*verb, "-f", "-", stdin=yaml.safe_dump_all(items))


def _await_policies(kube: Kube, namespace: str, served: list[Setup]) -> None:
    """The API server evaluates them a moment after it has taken them: until then pods would slip through."""
    left = [setup.name for setup in served if setup.name in AT_THE_DOOR]

    def all_evaluated() -> bool:
        while left and _is_refused(kube, namespace, left[0]):
            left.pop(0)
        return not left

    until(all_evaluated, f"the API server evaluates all policies: {', '.join(left)}", 30)


def _is_refused(kube: Kube, namespace: str, name: str) -> bool:
    """Whether the API server takes no pod of this ModelDeployment, because of what a policy adds or refuses."""
    pod = broken.occupant("none", namespace)
    pod["metadata"] |= {"name": "trial", "labels": {broken.LABEL: name}}
    try:
        _with_all(kube, [pod], "apply", "--dry-run=server")
    except KubeError:
        return True
    return False


def _refused(kube: Kube, setup: Setup, item: Json) -> Row:
    """What kubectl says of a manifest that the API server does not take."""
    begun = time.monotonic()
    with pytest.raises(KubeError) as caught:
        _with_all(kube, [item], "apply")
    message = str(caught.value)
    assert all(word in message for word in setup.words), f"{setup.name}: {message}"
    return Row(setup, time.monotonic() - begun, message[message.index(setup.words[0]) :])


@pytest.mark.timeout(420, func_only=True)
def test_each_broken_setup_has_its_reason_within_seconds(
    slipway: Installation, places: dict[str, str], served: list[Setup], request: pytest.FixtureRequest
) -> None:
    kube, watch = slipway.kube, Watch(slipway.kube, tuple(places.values()))
    watch.rows += [_refused(kube, one, broken.manifest(one, places["shared"], slipway.images)) for one in REFUSED]
    for group in broken.groups(served):
        made = [broken.manifest(setup, places[setup.place], slipway.images) for setup in group]
        begun = time.monotonic()
        _with_all(kube, made, "apply")
        watch.until_reported(group, begun)

    serving = Deployment(kube, places["shared"], CANARY.name)
    serving.until("it serves", lambda status: status["phase"] == "Healthy", START_S)
    begun = time.monotonic()
    serving.edit(**CANARY.spec)
    watch.until_reported([CANARY], begun)

    rows = sorted(watch.rows, key=lambda row: [*SETUPS, CANARY, *REFUSED].index(row.setup))
    print(f"\n{broken.markdown(rows)}")
    assert len({row.message for row in rows}) == len(served) + 1 + len(REFUSED), "two set-ups have the same message"
    causes = {row.setup.reason for row in rows}
    assert len(causes) >= 12, f"too few different reasons: {causes}"
    if page := request.config.getoption("--setups-table"):
        assert len(served) == len(SETUPS), "a cluster that cannot be brought into all of them gives no whole table"
        put_table(Path(page), broken.markdown(rows))
