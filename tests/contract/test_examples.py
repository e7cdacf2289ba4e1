"""The examples that need neither a hub nor a GPU run beside the demo, on its cluster of two cores."""

import re
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
import yaml

from examples.demo.stage import NAME
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods.workload import replica_set
from slipway_operator.model import quantity
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.deployment.spec import Spec, parse
from slipway_operator.planning.facts.revision import TEMPLATE_VERSION
from testkit import ROOT

pytestmark = pytest.mark.finding("S6")
CORES, GIB = 2, 2**30
Demand = Counter[str]


def _documents(folder: str) -> dict[str, Any]:
    found = (item for path in sorted((ROOT / folder).glob("*.yaml")) for item in yaml.safe_load_all(path.read_text()))
    return {item["metadata"]["name"]: item for item in found if item["kind"] == "ModelDeployment"}


# Members of a pool have no pods; the suite of a cluster makes a pool of its own (e2e/test_pool.py).
EXAMPLES = {
    name: obj
    for name, obj in _documents("examples").items()
    if obj["spec"]["model"]["uri"].startswith("file://") and "pool" not in obj["spec"]
}
POOLED = sum("pool" in obj["spec"] for obj in _documents("examples").values())
[DEMO] = _documents("examples/demo/manifests").values()  # its versions are of one name


def _requested(containers: list[dict[str, Any]]) -> Demand:
    total: Demand = Counter()
    for item in containers:
        for name, text in item["resources"].get("requests", {}).items():
            total[name] += quantity.parse(str(text))  # type: ignore[assignment]
    return total


def _of_model(obj: dict[str, Any], *, rolling: bool) -> Demand:
    """Requests of all pods of an example; during a rollout those of both revisions."""
    obj = {**obj, "metadata": {**obj["metadata"], "namespace": "default", "uid": "u1", "generation": 1}}
    spec = parse(obj)
    assert isinstance(spec, Spec), spec
    snapshot = Snapshot("aaaaaaaaaa", 1, spec.inputs, "slipway-server:1", spec.drain_timeout_s, TEMPLATE_VERSION)
    pod = replica_set(Owner.of(obj), snapshot, 1)["spec"]["template"]["spec"]
    one = _requested(pod["containers"]) | _requested(pod["initContainers"])
    pods = spec.replicas * (2 if rolling else 1)
    return Counter({name: amount * pods for name, amount in one.items()})


def _of_the_rest() -> Demand:
    """Requests of the chart with its defaults, and of the pods of kubeadm and kind on their only node."""
    chart = yaml.safe_load((ROOT / "charts" / "slipway" / "values.yaml").read_text())
    gateways = [chart["gateway"]] * chart["gateway"]["replicaCount"]
    cluster = {"requests": {"cpu": "950m", "memory": "290Mi"}}
    return _requested([{"resources": cluster}, chart["operator"], *gateways])


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_each_goes_through_a_rollout_beside_the_demo_and_the_quickstart(name: str) -> None:
    """`1 x 1 cpu missing, too little is free`."""
    demand = _of_the_rest() + _of_model(DEMO, rolling=True) + _of_model(EXAMPLES[name], rolling=True)
    if name != "quickstart":
        demand += _of_model(EXAMPLES["quickstart"], rolling=False)
    assert demand["cpu"] <= CORES and demand["memory"] <= 8 * GIB, demand


def test_all_together_fit() -> None:
    models = [DEMO, *EXAMPLES.values()]
    demand = sum((_of_model(obj, rolling=False) for obj in models), _of_the_rest())
    assert 1 <= Fraction(demand["cpu"]) <= CORES and demand["memory"] <= 16 * GIB, demand


def test_none_takes_the_name_of_another_or_of_the_demo() -> None:
    """A second one of a name would be reached as namespace/name alone."""
    files = [path.read_text() for path in sorted((ROOT / "examples").glob("*.yaml"))]
    named = [
        obj["spec"]["model"].get("name", obj["metadata"]["name"])
        for text in files
        for obj in yaml.safe_load_all(text)
        if obj["kind"] == "ModelDeployment" and obj["spec"]["model"]["uri"].startswith("file://")
    ]
    assert len(named) == len({*named, NAME}) - 1 and len(EXAMPLES) == len(named) - POOLED >= 5


ENGINES = _documents("examples/engines")


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_each_engine_listens_on_the_port_and_is_drained(name: str) -> None:
    """Another port, or 127.0.0.1, and the pod never becomes ready."""
    obj = ENGINES[name]
    obj = {**obj, "metadata": {**obj["metadata"], "namespace": "default", "uid": "u1", "generation": 1}}
    spec = parse(obj)
    assert isinstance(spec, Spec), spec
    snapshot = Snapshot(
        "aaaaaaaaaa", 1, spec.inputs, spec.inputs.engine.image or "", spec.drain_timeout_s, TEMPLATE_VERSION,
        fetcher_image="slipway-server:1",
    )  # fmt: skip
    pod = replica_set(Owner.of(obj), snapshot, 1)["spec"]["template"]["spec"]
    [engine] = pod["containers"]
    text = " ".join([*engine.get("command", []), *engine["args"], *(one.get("value", "") for one in engine["env"])])
    assert re.search(r"SLIPWAY_PORT|0\.0\.0\.0:8000", text) and "SLIPWAY_MODEL_PATH" in text
    assert "127.0.0.1" not in text and engine["readinessProbe"]["httpGet"]["path"] != "/"
    assert {item["name"] for item in pod["volumes"]} >= {mount["name"] for mount in engine["volumeMounts"]}


def test_llama_server_gets_each_value_as_an_argument_of_its_own() -> None:
    """`error: invalid argument: --model=/mnt/models/current/model.gguf`, from every pod of the example."""
    engine = _documents("examples")["qwen3-gguf"]["spec"]["engine"]
    assert engine["args"] and not [argument for argument in engine["args"] if re.match("--.*=", argument)]
