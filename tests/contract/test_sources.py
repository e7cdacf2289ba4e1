"""The fetcher of a pod that the operator renders for an object store, run as that pod runs it."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipway_fetcher.objects import access
from slipway_fetcher.settings import FetcherSettings
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods.workload import STORE_SECRETS, replica_set
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.cluster.weights import reported
from slipway_operator.model.deployment.spec import Spec, parse
from testkit import ROOT
from tests.fetcher.site import contents, run
from tests.support.settings import parsed
from tests.support.stores import moto

OWNER = Owner("chat", "default", "6f0e3a52-0000-4000-8000-000000000000")
MODEL = {
    "uri": "s3://models/chat", "secretRef": {"name": "minio"},
    "objectStore": {"endpoint": "http://minio.models.svc:9000", "region": "eu-central-1"},
}  # fmt: skip


def containers(model: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fetcher and the server."""
    spec = parse({"metadata": {"name": "chat"}, "spec": {"model": model}})
    assert isinstance(spec, Spec), spec
    snapshot = Snapshot("abcdefgh22", 1, spec.inputs, "slipway-server:1", 300, 2)
    pod = replica_set(OWNER, snapshot, 1)["spec"]["template"]["spec"]
    return pod["initContainers"][0], pod["containers"][0]


def references(container: dict[str, Any]) -> dict[str, Any]:
    found = {item["name"]: item.get("valueFrom", {}).get("secretKeyRef") for item in container["env"]}
    return {name: reference for name, reference in found.items() if reference}


@pytest.mark.attack_class(22)
@pytest.mark.parametrize(
    ("uri", "names"),
    [
        ("s3://models/chat", STORE_SECRETS["s3"]),
        ("gs://models/a", STORE_SECRETS["gs"]),
        ("az://models/a", STORE_SECRETS["az"]),
    ],
)
def test_keys_of_a_secret_go_to_the_fetcher_alone(uri: str, names: tuple[str, ...]) -> None:
    fetcher, server = containers({"uri": uri, "secretRef": {"name": "keys", "key": "HF_TOKEN"}})
    assert references(fetcher) == {name: {"name": "keys", "key": name, "optional": True} for name in names}
    assert not references(server)
    assert "HF_TOKEN" not in str(fetcher["env"])


@pytest.mark.attack_class(22)
def test_a_registrys_secret_goes_to_the_fetcher_alone() -> None:
    fetcher, server = containers({"uri": "oci://ghcr.io/org/model:v1", "secretRef": {"name": "pull"}})
    assert references(fetcher) == {"DOCKER_AUTH_CONFIG": {"name": "pull", "key": ".dockerconfigjson"}}
    assert not references(server)


def test_both_sides_know_the_same_keys() -> None:
    assert access.SECRETS == STORE_SECRETS


def test_the_fetcher_parses_the_operators_flags() -> None:
    settings = parsed(FetcherSettings.parse, containers(MODEL)[0]["args"])
    assert (settings.uri, settings.endpoint, settings.region) == (
        MODEL["uri"],
        "http://minio.models.svc:9000",
        "eu-central-1",
    )
    settings = parsed(
        FetcherSettings.parse, containers({"uri": "az://models/a", "objectStore": {"account": "team1"}})[0]["args"]
    )
    assert (settings.account, settings.endpoint) == ("team1", "")


def test_a_download_is_bounded_by_the_storage() -> None:
    for uri in ("s3://models/chat", "gs://models/chat", "oci://ghcr.io/org/model:v1"):
        assert "--max-bytes" in containers({"uri": uri})[0]["args"]


@pytest.mark.integration
def test_the_rendered_fetcher_fetches(tmp_path: Path) -> None:
    """Its arguments and variables, with the addresses of this machine in place of the cluster's."""
    with moto(tmp_path / "log") as s3:
        s3.put(
            "models",
            {f"chat/{name}": body for name, body in contents(ROOT / "examples" / "models" / "tiny-v1").items()},
        )
        fetcher, _ = containers({**MODEL, "objectStore": {**MODEL["objectStore"], "endpoint": s3.url}})
        uri, dest = (fetcher["args"][fetcher["args"].index(flag) + 1] for flag in ("--uri", "--dest"))
        rest = [part for part in fetcher["args"] if part not in ("--uri", uri, "--dest", dest)]
        secret = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "canary"}
        variables = {name: secret[name] for name in references(fetcher) if name in secret}
        code, words, log = run(tmp_path / "models", uri, *rest, "--allow-host", "127.0.0.1", **variables)
    assert code == 0, words
    weights = reported(words)
    assert weights and weights.digest == json.loads((tmp_path / "models" / "slipway-model.json").read_text())["digest"]
    assert "canary" not in words + log
