"""Pools: the server and its fetcher take the file and the arguments that the operator writes, and gateways its pods."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from slipway_contracts.fetch_source import FetchSource
from slipway_fetcher.pool import PoolFetcherSettings
from slipway_gateway.routing.pods import LABEL_POOL, LABEL_REVISION, parse_pod
from slipway_gateway.routing.table import POOL_PREFIX, build, parse_route
from slipway_operator.api.pools.model_pool import ModelPoolSpec
from slipway_operator.kube.reading.observe import pool_entry
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pools import entries, stateful_set
from slipway_operator.manifests.pools.entries import PoolMemberRevision
from slipway_operator.model import labels
from slipway_operator.model import pool_views as pools
from slipway_operator.model.cluster.observed import Observed, Snapshot
from slipway_operator.model.inputs.classic import PoolMember
from slipway_operator.model.inputs.pod_inputs import Model, ObjectStore, PodInputs
from slipway_operator.model.pool_views import EntryState, PoolPod, PoolView
from slipway_operator.pools import serving
from slipway_predict.pool.slot import ModelSlot
from slipway_predict.settings import PredictSettings
from slipway_process.model_folder import catalog
from slipway_process.model_folder.catalog import fingerprint, read_catalog
from slipway_process.model_folder.checkpoint import CheckpointError
from slipway_process.serving.errors import PREFIX
from testkit.cluster.api import Api
from tests.support.pod_security import enforce_restricted
from tests.support.settings import parsed

OWNER = Owner("shared", "default", "6f0e3a52-0000-4000-8000-000000000000")
SPEC = ModelPoolSpec.model_validate_json(
    b'{"replicas": 2, "secretRef": {"name": "keys"}, "resources": {"cpu": 2, "memory": "4Gi", "storage": "1Gi"},'
    b'"limits": {"memory": "2Gi", "maxLoaded": 8, "minResidencySeconds": 1, "loadTimeoutSeconds": 5,'
    b'"maxLoadSeconds": 60, "parallelLoads": 3, "maxWaitingLoads": 9}, "batching": {"maxBatchSize": 16}}'
)


def _member(revision: str, *, stable: bool = False, name: str = "iris", **model: Any) -> PoolMemberRevision:
    member = PoolMember("shared", pinned=True, max_in_flight=8, max_memory="1Gi", threads=2)
    chosen = Model(f"s3://bucket/{revision}", name, "sha256:" + "0" * 64, task="predict", format="onnx", **model)
    return PoolMemberRevision(name, Snapshot(revision, 1, PodInputs(chosen, pool=member), "", 600, 3), stable)


def _read(tmp_path: Path, *members: PoolMemberRevision) -> catalog.Catalog:
    chosen, _ = entries.chosen(members)
    (tmp_path / "pool.json").write_text(entries.pool_file(chosen))
    return read_catalog(tmp_path / "pool.json")


def test_server_and_fetcher_read_the_operators_file(tmp_path: Path) -> None:
    store = ObjectStore("https://minio:9000", "eu-1")
    found = _read(tmp_path, _member("r1", stable=True), _member("r2", version="v2", object_store=store))
    first, second = found.entries["iris", "r1"], found.entries["iris", "r2"]
    assert found.defaults == {"iris": "r1"}, "requests without a gateway get stable"
    assert (first.shown_version, second.shown_version) == ("r1", "v2")
    assert (second.path, second.max_in_flight, second.max_memory_bytes, second.threads) == ("r2", 8, 1 << 30, 2)
    assert second.source == FetchSource(
        uri="s3://bucket/r2", revision="sha256:" + "0" * 64, endpoint="https://minio:9000", region="eu-1"
    )


def test_two_members_with_the_same_inputs_are_one_entry_and_what_has_no_room_is_counted(tmp_path: Path) -> None:
    same = dataclasses.replace(_member("r1"), deployment="other")
    assert len(_read(tmp_path, _member("r1", stable=True), same).entries) == 1
    many = [_member(f"r{number}", name=f"m{number}") for number in range(catalog.MAX_MODELS + 3)]
    assert entries.chosen(many)[1] == 3
    assert len(_read(tmp_path, *many).entries) == catalog.MAX_MODELS == pools.MAX_ENTRIES
    assert len(entries.pool_file(entries.chosen(many)[0])) < catalog.MAX_FILE_BYTES


def test_server_and_fetcher_parse_the_operators_arguments() -> None:
    made = stateful_set.stateful_set(OWNER, SPEC, "slipway-server:1")
    server, fetcher = made["spec"]["template"]["spec"]["containers"]
    assert (server["command"], fetcher["command"]) == (["slipway-server"], ["slipway-pool-fetcher"])
    settings, fetching = (
        parsed(PredictSettings.parse, server["args"]),
        parsed(PoolFetcherSettings.parse, fetcher["args"]),
    )
    assert settings.pool_config == str(fetching.pool_config) == "/etc/slipway/pool/pool.json"
    assert settings.model == fetching.dest
    assert (settings.pool_memory_bytes, settings.pool_max_loaded, settings.pool_parallel_loads) == (2 << 30, 8, 3)
    assert (settings.pool_min_residency_s, settings.pool_load_timeout_s, settings.pool_max_load_s) == (1, 5, 60)
    assert (settings.pool_max_waiting_loads, settings.max_batch_size, fetching.max_bytes) == (9, 16, 1 << 30)
    assert "env" in fetcher and not any("valueFrom" in one for one in server["env"]), "the server has no credentials"
    assert {"AWS_SECRET_ACCESS_KEY", "HF_TOKEN"} <= {one["name"] for one in fetcher["env"]}


def test_with_tls_the_server_alone_has_the_certificate_and_its_probes_need_none() -> None:
    made = stateful_set.stateful_set(OWNER, SPEC, "slipway-server:1", tls=True)
    server, fetcher = made["spec"]["template"]["spec"]["containers"]
    settings = parsed(PredictSettings.parse, server["args"])
    [folder] = [mount["mountPath"] for mount in server["volumeMounts"] if mount["name"] == "pod-tls"]
    assert (settings.ssl_certfile, settings.ssl_ca_certs) == (f"{folder}/tls.crt", f"{folder}/ca.crt")
    assert "pod-tls" not in {mount["name"] for mount in fetcher["volumeMounts"]}
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert "https" in ports and "http" not in ports
    probed = {server[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe", "startupProbe")}
    assert probed == {"probe"} and ports["probe"] == settings.probe_port


@pytest.mark.integration
def test_a_restricted_namespace_takes_the_pods_of_a_pool(api: Api, namespace: str) -> None:
    enforce_restricted(api, namespace)
    template = stateful_set.stateful_set(OWNER, SPEC, "slipway-server:1")["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": "shared-0", **template["metadata"]}}
    answer = api.post(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All", fieldValidation="Strict")
    assert answer.ok, answer.message


def test_what_the_server_says_of_an_entry_that_waits_is_no_trouble(tmp_path: Path) -> None:
    entry = _read(tmp_path, _member("r1")).entries["iris", "r1"]
    slot = ModelSlot(entry)
    assert not EntryState(slot.state, slot.reason).trouble, "not loaded yet"
    with pytest.raises(CheckpointError) as missing:
        fingerprint(tmp_path, entry)
    slot.failed(str(missing.value), 0.0, None)
    assert not EntryState(slot.state, slot.reason).trouble, "on its way"
    (tmp_path / "r1").mkdir()
    (tmp_path / "r1" / catalog.FETCH_ERROR).write_text("no such bucket")
    with pytest.raises(CheckpointError) as failed:
        fingerprint(tmp_path, entry)
    slot.failed(str(failed.value), 0.0, None)
    assert EntryState(slot.state, slot.reason).trouble == "no such bucket"


def test_gateways_send_a_members_requests_to_the_pods_of_its_pool() -> None:
    assert (LABEL_POOL, POOL_PREFIX) == (labels.MODEL_POOL, PREFIX)
    made = stateful_set.stateful_set(OWNER, SPEC, "slipway-server:1")
    template = made["spec"]["template"]
    assert LABEL_REVISION in template["metadata"]["labels"], "gateways watch pods that have it"
    metadata = {"name": "chat-r1", "namespace": "default", "labels": {labels.REVISION: "r1"}}
    metadata["annotations"] = {labels.POOL_REPLICAS: "1"}
    view = PoolView("set-uid", 1, (PoolPod("shared-0", {"r1": EntryState("READY", "", True)}),))
    entry = pool_entry({"metadata": metadata})
    assert entry
    seen = Observed({"r1": _member("r1").snapshot}, {"r1": entry})
    found = serving.served(seen, "default", {("default", "shared"): view}, "r1").workloads["r1"]
    pod = {
        "metadata": {
            "name": "shared-0",
            "namespace": "default",
            "labels": template["metadata"]["labels"],
            "ownerReferences": [{"kind": made["kind"], "name": "shared-pool", "uid": "set-uid", "controller": True}],
        },
        "spec": template["spec"],
        "status": {"podIP": "10.0.0.1", "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    traffic = {"generation": 1, "model": "iris", "backends": [{"revision": "r1", "weight": 100}]}
    status = {"traffic": traffic, "revisions": [{"revision": "r1", "replicaSetUid": found.uid}]}
    parsed_route, endpoint = parse_route(_deployment("default", status)), parse_pod(pod)
    assert endpoint is not None and not isinstance(parsed_route, type(None))
    table = build([parsed_route], [endpoint])  # type: ignore[list-item]
    assert table.endpoints == {("default/iris", "r1"): ("http://10.0.0.1:8000/revisions/r1",)}
    elsewhere = build([parse_route(_deployment("other", status))], [endpoint])  # type: ignore[list-item]
    assert elsewhere.endpoints == {}, "a pool serves its own namespace, whatever a status says"


def _deployment(namespace: str, status: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace, "name": "iris", "uid": "u"}, "spec": {}, "status": status}
