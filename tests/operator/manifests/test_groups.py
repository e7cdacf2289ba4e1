"""LeaderWorkerSets: the golden file pins one, as existing revisions must be rendered as they were made."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from slipway_operator.manifests.groups.leader_worker_set import leader_worker_set, workload
from slipway_operator.manifests.owner import Owner
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.inputs.pod_inputs import Engine, Model, Parallelism, PodInputs, Resources, checked

GOLDEN = Path(__file__).parent / "golden_leaderworkerset_v2.json"
OWNER = Owner("chat", "team", "u1")
TWO = Parallelism(2)
GPUS = Resources(accelerator=("nvidia.com/gpu", 8))
VLLM = Engine("vllm/vllm-openai:v0.32.0", type="vllm", args=("--enable-prefix-caching",), parallelism=TWO)
SGLANG = Engine("lmsysorg/sglang:v0.6.0", type="sglang", parallelism=TWO)
CUSTOM = Engine("engine:1", type="custom", command=("serve",), args=("--fast",), parallelism=TWO)


def made(engine: Engine, resources: Resources = GPUS, **pod: Any) -> dict[str, Any]:
    inputs = checked(PodInputs(Model("hf://org/m", "m"), engine, resources, pod=pod))
    snapshot = Snapshot("abcdefghij", 1, inputs, engine.image or "", 300, 2, fetcher_image="server:1")
    return leader_worker_set(OWNER, snapshot, 3)


def containers(engine: Engine, resources: Resources = GPUS) -> tuple[dict[str, Any], dict[str, Any]]:
    """The engine's container of the leader and of the workers."""
    template = made(engine, resources)["spec"]["leaderWorkerTemplate"]
    leader, worker = (template[name]["spec"]["containers"][0] for name in ("leaderTemplate", "workerTemplate"))
    return leader, worker


def sized(tensor: int | None, pipeline: int | None) -> Parallelism:
    return Parallelism(2, tensor, pipeline)


def test_leader_worker_set_equals_its_golden_file() -> None:
    assert made(VLLM) == json.loads(GOLDEN.read_text())


def test_a_revision_with_one_pod_for_a_replica_is_a_replica_set() -> None:
    snapshot = Snapshot("abcdefghij", 1, PodInputs(Model("hf://org/m", "m"), Engine()), "server:1", 300, 2)
    assert workload(OWNER, snapshot, 1)["kind"] == "ReplicaSet"
    grouped = dataclasses.replace(snapshot, inputs=PodInputs(Model("hf://org/m", "m"), CUSTOM))
    assert workload(OWNER, grouped, 1)["kind"] == "LeaderWorkerSet"


def test_vllm_has_tensor_parallelism_in_a_pod_and_pipeline_parallelism_across_pods() -> None:
    leader, worker = containers(VLLM)
    group = ["--nnodes", "2", "--node-rank", "$(LWS_WORKER_INDEX)", "--master-addr", "$(LWS_LEADER_ADDRESS)"]
    text = " ".join(leader["args"])
    assert "--tensor-parallel-size 8 --pipeline-parallel-size 2" in text
    assert " ".join(group) in text
    assert leader["args"][-1] == worker["args"][-1] == "--enable-prefix-caching"
    assert [item for item in worker["args"] if item not in leader["args"]] == ["--headless"]
    plain, _ = containers(VLLM, Resources())
    assert "--tensor-parallel-size" not in plain["args"] and "--pipeline-parallel-size 2" in " ".join(plain["args"])


def test_sglang_has_tensor_parallelism_over_all_pods() -> None:
    leader, worker = containers(SGLANG)
    assert "--tp-size 16 --nnodes 2 --node-rank $(LWS_WORKER_INDEX)" in " ".join(leader["args"])
    assert "--dist-init-addr $(LWS_LEADER_ADDRESS):20000" in " ".join(worker["args"])
    assert worker["command"] == leader["command"]


@pytest.mark.parametrize(
    ("tensor", "pipeline", "flags"),
    [
        (16, None, ["--tensor-parallel-size", "16"]),
        (None, 4, ["--tensor-parallel-size", "4", "--pipeline-parallel-size", "4"]),
        (4, 4, ["--tensor-parallel-size", "4", "--pipeline-parallel-size", "4"]),
    ],
)
def test_given_sizes_take_the_place_of_the_defaults(tensor: int | None, pipeline: int | None, flags: list[str]) -> None:
    leader, _ = containers(dataclasses.replace(VLLM, parallelism=sized(tensor, pipeline)))
    found = [item for item in leader["args"] if item.startswith(("--tensor", "--pipeline"))]
    assert found == flags[::2] and " ".join(flags) in " ".join(leader["args"])


@pytest.mark.parametrize("sizes", [(3, None), (None, 5), (8, 4), (32, None)])
def test_sizes_that_do_not_fit_the_devices_are_refused(sizes: tuple[int | None, int | None]) -> None:
    with pytest.raises(ValueError, match="a replica has 16 devices"):
        made(dataclasses.replace(VLLM, parallelism=sized(*sizes)))


def test_slipway_server_has_no_parallelism() -> None:
    with pytest.raises(ValueError, match="slipway-server uses one device"):
        made(Engine(parallelism=TWO), Resources())


def test_workers_of_a_custom_engine_run_its_command_or_one_of_their_own() -> None:
    leader, worker = containers(CUSTOM)
    assert (leader["command"], leader["args"]) == (worker["command"], worker["args"]) == (["serve"], ["--fast"])
    leader, worker = containers(
        dataclasses.replace(CUSTOM, custom={"workerCommand": ["join", "$(LWS_LEADER_ADDRESS)"]})
    )
    assert (leader["command"], leader["args"]) == (["serve"], ["--fast"])
    assert (worker["command"], worker["args"]) == (["join", "$(LWS_LEADER_ADDRESS)"], [])


@pytest.mark.parametrize("engine", [VLLM, SGLANG, CUSTOM], ids=lambda engine: engine.type)
def test_workers_fetch_as_the_leader_does_and_are_not_probed(engine: Engine) -> None:
    template = made(engine)["spec"]["leaderWorkerTemplate"]
    leader, worker = template["leaderTemplate"]["spec"], template["workerTemplate"]["spec"]
    assert worker["initContainers"] == leader["initContainers"], "each pod has the model, of the pinned weights"
    assert worker["volumes"] == leader["volumes"]
    assert not [key for key in worker["containers"][0] if key.endswith("Probe") or key == "ports"]
    assert worker["terminationGracePeriodSeconds"] >= leader["terminationGracePeriodSeconds"]


def test_a_worker_ends_after_its_leader_where_its_image_can_wait_for_it() -> None:
    for engine in (VLLM, SGLANG):
        _, worker = containers(engine)
        program, flag, script = worker["lifecycle"]["preStop"]["exec"]["command"]
        assert (program, flag) == ("python3", "-c")
        compile(script, "preStop", "exec")
        assert '(os.environ["LWS_LEADER_ADDRESS"], 8000)' in script
    leader, worker = containers(CUSTOM)
    assert worker["lifecycle"] == leader["lifecycle"], "of its image nothing is known"


def test_only_leaders_look_like_pods_that_serve() -> None:
    template = made(VLLM)["spec"]["leaderWorkerTemplate"]
    leader, worker = (template[name]["metadata"]["labels"] for name in ("leaderTemplate", "workerTemplate"))
    assert (leader[labels.COMPONENT], worker[labels.COMPONENT]) == ("server", "worker")
    assert {**leader, labels.COMPONENT: "worker"} == worker


def test_metadata_for_queues_and_topology_is_that_of_the_group() -> None:
    found = made(
        VLLM,
        labels={"kueue.x-k8s.io/queue-name": "gpus", "team": "a"},
        annotations={"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack", "note": "b"},
    )
    assert found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert found["metadata"]["annotations"] == {"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack"}
    for name in ("leaderTemplate", "workerTemplate"):
        metadata = found["spec"]["leaderWorkerTemplate"][name]["metadata"]
        assert metadata["labels"]["team"] == "a" and metadata["annotations"]["note"] == "b"
        assert "kueue.x-k8s.io/queue-name" not in metadata["labels"]
    assert found["metadata"]["labels"][labels.REVISION] == "abcdefghij"
