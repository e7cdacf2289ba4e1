"""A release of which only the images are named, and the quickstart as it is in the repository: it answers."""

from collections.abc import Iterator

import pytest
import yaml

from e2e.asking import post
from testkit import ROOT
from testkit.cluster.deployment import START_S, Deployment
from testkit.cluster.installation import Installation
from testkit.cluster.kube import RELEASE, SYSTEM
from testkit.cluster.release import await_answer, install, port_forward

QUICKSTART = ROOT / "examples" / "quickstart.yaml"


@pytest.fixture
def without_values(slipway: Installation) -> Iterator[None]:
    install(slipway.kube, slipway.images)
    yield
    slipway.upgrade()
    slipway.until_well()


@pytest.mark.usefixtures("without_values")
def test_the_quickstart_answers_with_the_defaults_of_the_chart(slipway: Installation, namespace: str) -> None:
    chat = Deployment(slipway.kube, namespace, "quickstart")
    manifest = yaml.safe_load(QUICKSTART.read_text())
    # The short name is kept for a day for who had it last: that may be a former run.
    manifest["spec"]["model"]["name"] = chat.model
    slipway.kube.apply(manifest, namespace)
    chat.until("it is ready", lambda status: status.get("ready") == "1/1" and status["phase"] == "Healthy", START_S)
    with port_forward(slipway.kube, SYSTEM, f"svc/{RELEASE}-gateway", 80) as url:
        await_answer(url, 30)
        body = {"model": f"{namespace}/quickstart", "prompt": "In the beginning", "max_tokens": 32}
        status, text = post(f"{url}/v1/completions", body)
    assert status == 200 and '"finish_reason"' in text, text
