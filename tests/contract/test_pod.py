"""The server and the fetcher accept the pod that the operator writes."""

import sys
import tomllib

import pytest

from slipway_fetcher import __main__ as program
from slipway_fetcher import fetching as fetcher
from slipway_fetcher.pin import Report
from slipway_fetcher.settings import FetcherSettings
from slipway_operator.manifests.engines import slipway
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods import workload
from slipway_operator.model import labels
from slipway_operator.model.analysis.closed_job import closed
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.inputs.pod_inputs import (
    CLASSIC,
    Batching,
    Engine,
    Model,
    PodInputs,
    Resources,
    parse_inputs,
)
from slipway_predict.settings import PredictSettings
from slipway_server.settings import ServerSettings
from testkit import ROOT
from testkit.cluster.api import Api
from tests.contract.documented import TEXT, ports
from tests.crds.objects import model_deployment, path
from tests.crds.schema import walk
from tests.support.pod_security import enforce_restricted
from tests.support.settings import parsed

OWNER = Owner("chat", "default", "6f0e3a52-0000-4000-8000-000000000000")


def _snapshot(**model: object) -> Snapshot:
    chosen = {"uri": "hf://org/m", "name": "org/chat", "version": "v2", "max_model_len_tokens": 4096, **model}
    inputs = PodInputs(
        Model(**chosen),  # type: ignore[arg-type]
        Engine(
            args=() if model.get("task") in CLASSIC else ("--max-num-seqs", "8"),
            env=(("HF_ENDPOINT", "https://hub.example.com"),),
        ),
        Resources(cpu="1", memory="1Gi"),
    )
    return Snapshot("abcdefgh22", 1, inputs, "slipway-server:1", 300, 2)


def _pod(**model: object) -> dict:
    return workload.replica_set(OWNER, _snapshot(**model), 1)["spec"]["template"]["spec"]


def test_server_parses_the_operators_arguments() -> None:
    container = _pod()["containers"][0]
    assert container["command"] == ["slipway-server"]
    settings = parsed(ServerSettings.parse, container["args"])
    assert str(settings.model) == "/mnt/models"
    assert (settings.served_model_name, settings.model_version) == ("org/chat", "v2")
    assert (settings.port, settings.probe_port) == (8000, 8001)
    assert (settings.drain_timeout_s, settings.max_model_len, settings.max_num_seqs) == (300, 4096, 8)


def test_server_parses_the_arguments_of_a_pod_with_an_accelerator() -> None:
    inputs = PodInputs(Model("hf://org/m", "chat"), resources=Resources(accelerator=("nvidia.com/gpu", 1)))
    settings = parsed(
        ServerSettings.parse, slipway.profile(Snapshot("abcdefgh22", 1, inputs, "slipway-server:1", 300, 2)).args
    )
    assert (settings.device, settings.allow_slow) == ("cuda", False)


@pytest.mark.parametrize(("field", "value"), [("promptLookupMin", 16), ("promptLookupMax", 1)])
def test_server_starts_with_one_bound_of_a_lookup(field: str, value: int) -> None:
    engine = {"speculation": {"method": "ngram", field: value}}
    inputs = parse_inputs({"model": {"uri": "hf://org/m"}, "engine": engine}, "m")
    settings = parsed(
        ServerSettings.parse, slipway.profile(Snapshot("abcdefgh22", 1, inputs, "slipway-server:1", 300, 2)).args
    )
    assert (settings.speculation, settings.prompt_lookup_min, settings.prompt_lookup_max) == ("ngram", value, value)


def test_server_parses_the_arguments_of_a_pod_with_a_draft_model() -> None:
    inputs = parse_inputs({"model": {"uri": "hf://org/m", "draft": {"uri": "hf://org/small"}}}, "m")
    settings = parsed(
        ServerSettings.parse, slipway.profile(Snapshot("abcdefgh22", 1, inputs, "slipway-server:1", 300, 2)).args
    )
    assert (settings.speculation, settings.speculative_draft_model) == ("draft", "/mnt/models/draft")


@pytest.mark.parametrize("field", ["task", "format", "dtype"])
def test_server_knows_every_choice_of_the_crd(field: str) -> None:
    choices = next(node["enum"] for path, node in walk() if path == f"spec.model.{field}")
    for choice in choices:
        model = {"task": "predict" if field == "format" else "auto", field: choice}
        server = PredictSettings if model["task"] in CLASSIC else ServerSettings
        settings = parsed(server.parse, _pod(**model)["containers"][0]["args"])
        assert getattr(settings, field) == choice


def test_crd_reserves_every_argument_that_the_operator_sets() -> None:
    ours = {arg for arg in slipway.profile(_snapshot()).args if arg.startswith("--")}
    rules = next(node for path, node in walk() if path == "spec.engine")["x-kubernetes-validations"]
    rule = next(item["rule"] for item in rules if "self.type != 'slipway'" in item["rule"])
    assert not [flag for flag in ours if flag.removeprefix("--") not in rule]


def test_server_and_fetcher_parse_the_arguments_of_a_classic_model() -> None:
    inputs = PodInputs(Model("hf://org/m", "m", task="predict", format="onnx"), batching=Batching(8, 0, 100, 50))
    snapshot = Snapshot("abcdefgh22", 1, inputs, "slipway-server:1", 300, 2)
    settings = parsed(PredictSettings.parse, slipway.profile(snapshot).args)
    assert (settings.task, settings.format, settings.model_revision) == ("predict", "onnx", "abcdefgh22")
    assert (settings.max_batch_size, settings.max_queue_delay_microseconds) == (8, 0)
    assert (settings.max_queue_size, settings.request_timeout_ms) == (100, 50)
    ours = {arg for arg in slipway.profile(snapshot).args if arg.startswith("--")}
    rules = next(node for path, node in walk() if path == "spec.engine")["x-kubernetes-validations"]
    rule = next(item["rule"] for item in rules if "self.type != 'slipway'" in item["rule"])
    assert not [flag for flag in ours if flag.removeprefix("--") not in rule]
    pod = workload.replica_set(OWNER, snapshot, 1)["spec"]["template"]["spec"]
    fetched = parsed(FetcherSettings.parse, pod["initContainers"][0]["args"])
    assert (fetched.format, fetched.any_engine) == ("onnx", False)


def test_a_reranker_is_fetched_and_served_from_safetensors() -> None:
    inputs = parse_inputs({"model": {"uri": "hf://org/m", "task": "rerank"}}, "m")
    snapshot = Snapshot("abcdefgh22", 1, inputs, "slipway-server:1", 300, 2)
    settings = parsed(PredictSettings.parse, slipway.profile(snapshot).args)
    assert (settings.task, settings.format) == ("rerank", "transformers")
    pod = workload.replica_set(OWNER, snapshot, 1)["spec"]["template"]["spec"]
    assert parsed(FetcherSettings.parse, pod["initContainers"][0]["args"]).format == "transformers"


@pytest.mark.parametrize(("uri", "revision"), [("hf://org/m", "main"), ("pvc://claim/m", None), ("file:///m", None)])
def test_fetcher_parses_the_operators_arguments(
    monkeypatch: pytest.MonkeyPatch, uri: str, revision: str | None
) -> None:
    container = _pod(uri=uri, revision=revision)["initContainers"][0]
    monkeypatch.setattr(sys, "argv", [*container["command"], *container["args"]])
    seen: dict[str, object] = {}

    def fetch(*found: object, **options: object) -> Report:
        seen.update(found=found, **options)
        return Report("sha256:" + "0" * 64, "", 1, 1, False)

    monkeypatch.setattr(program, "fetch", fetch)
    monkeypatch.setattr(program.logs, "configure", lambda level: None)
    for variable in container["env"]:
        if "value" in variable:
            monkeypatch.setenv(variable["name"], variable["value"])
    program.main()
    downloads = not uri.startswith(("pvc", "file"))
    assert seen["max_bytes"] == (64 * 2**30 if downloads else 2**40)
    assert str(seen["pin_file"]) == "/etc/slipway/weights/pin.json"
    assert [str(value) for value in seen["found"]] == [uri, revision or "", "/mnt/models"]  # type: ignore[attr-defined]


def test_ports_of_the_server() -> None:
    found = {port["name"]: port["containerPort"] for port in _pod()["containers"][0]["ports"]}
    assert found == {name: number for (process, name), number in ports().items() if process == "server"}


def test_claim_is_mounted_where_the_fetcher_looks() -> None:
    mounts = {mount["name"]: mount for mount in _pod(uri="pvc://claim/m")["containers"][0]["volumeMounts"]}
    assert mounts["claim"]["mountPath"] == str(fetcher.PVC_MOUNT)
    assert mounts["claim"]["readOnly"]


def test_labels_are_those_of_the_document() -> None:
    for label in (labels.MODEL_DEPLOYMENT, labels.REVISION, labels.MANAGED_BY, labels.COMPONENT, labels.FIELD_MANAGER):
        assert f"`{label}" in TEXT


def test_console_scripts_are_the_commands_of_the_manifests() -> None:
    scripts = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"])
    pod = _pod()
    commands = {container["command"][0] for container in (*pod["containers"], *pod["initContainers"])}
    assert commands | {"slipway-operator", "slipway-gateway"} <= scripts


@pytest.mark.integration
@pytest.mark.parametrize("uri", ["hf://org/m", "pvc://claim/m"])
def test_model_pod_passes_pod_security_restricted(api: Api, namespace: str, uri: str) -> None:
    enforce_restricted(api, namespace)
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trial"}, "spec": _pod(uri=uri)}
    answer = api.post(f"/api/v1/namespaces/{namespace}/pods", body, dryRun="All", fieldValidation="Strict")
    assert answer.ok, answer.message


@pytest.mark.integration
def test_replica_set_is_accepted_strictly(api: Api, namespace: str) -> None:
    made = api.post(path(namespace), model_deployment()).body
    manifest = workload.replica_set(Owner.of(made), _snapshot(), 1)
    target = f"/apis/apps/v1/namespaces/{namespace}/replicasets/{manifest['metadata']['name']}"
    answer = api.apply(target, manifest, dryRun="All", fieldValidation="Strict")
    assert answer.ok, answer.message


@pytest.mark.finding(16)
@pytest.mark.integration
@pytest.mark.attack_class(2)
def test_pod_of_an_analysis_job_passes_pod_security_restricted(api: Api, namespace: str) -> None:
    """Safety 16: missing fields get defaults, so that the smallest pod is a restricted one."""
    enforce_restricted(api, namespace)
    container = {"name": "smoke", "image": "registry.example.com/smoke:1"}
    volumes = [{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {"name": "c"}}]
    spec = closed(
        {"template": {"spec": {"containers": [container], "initContainers": [container], "volumes": volumes}}}
    )
    spec["template"]["spec"]["initContainers"][0] |= {"name": "first"}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trial"}, "spec": spec["template"]["spec"]}
    answer = api.post(f"/api/v1/namespaces/{namespace}/pods", body, dryRun="All", fieldValidation="Strict")
    assert answer.ok, answer.message
