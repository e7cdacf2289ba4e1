"""A real operator and a real gateway: a canary is promoted, and the next one aborted, by the console's forms."""

import asyncio
import contextlib
from typing import Any

import pytest

from slipway_operator.kube.resources import MODEL_DEPLOYMENTS
from testkit.cluster.api import Api
from testkit.until import until_async
from tests.console.conftest import signed_in
from tests.console.test_actions import act
from tests.console.test_pages import text_of, visible
from tests.console.world import EDITOR, Console, token_of
from tests.operator.integration.conftest import MANIFEST, client, cluster, operator_flags

__all__ = ["client", "cluster", "operator_flags"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def model(version: str) -> dict[str, str]:
    return {"uri": f"file:///opt/slipway/models/{version}", "version": version}


async def test_a_rollout_by_the_console_alone(cluster: Any, api: Api, console: Console) -> None:
    namespace = cluster.namespace
    steps = [{"setWeight": 50}, {"pause": {}}]
    spec = {"model": model("v1"), "replicas": 2, "strategy": {"canary": {"steps": steps, "scaleDownDelaySeconds": 0}}}
    metadata = {"name": "chat", "namespace": namespace}
    await cluster.client.create(MODEL_DEPLOYMENTS, MANIFEST | {"metadata": metadata, "spec": spec})
    await cluster.reaches("v1 is healthy", lambda status: status.get("phase") == "Healthy")
    token = await asyncio.to_thread(token_of, api, namespace, "editor", EDITOR)
    async with contextlib.AsyncExitStack() as stack:
        browser = await signed_in(stack, console, token)
        where = f"/deployments/{namespace}/chat"

        async def seen() -> str:
            return visible(await text_of(browser, where))

        for version, action in (("v2", "promote"), ("v3", "abort")):
            await cluster.edit({"model": model(version)})
            paused = await cluster.reaches("its pause", lambda status: status.get("phase") == "Paused")
            page = await until_async(seen, "the pause", holds=lambda text: "now pause until it is promoted" in text)
            assert f"canary {version}" in page and "50 % 1 of 1 ready" in page
            code, text = await act(browser, namespace, action, token=paused["rollout"]["token"])
            assert code == 303 and "Requested: " in text
            if action == "promote":
                await cluster.reaches("v2 is stable", lambda status: status.get("phase") == "Healthy")
            else:
                await cluster.reaches("v3 is gone", lambda status: (status["rollout"] or {}).get("state") == "Aborted")
        page = await until_async(seen, "the abort", holds=lambda text: "is rejected" in text)
        assert "slipway-console" in page and "spec.rollout.abort" in page
        assert "rollout.promote" in page
        # Undo has where to go: the operator's own records.
        html = await text_of(browser, where)
        assert '<option value="' in html and " v1 " in f" {visible(html)} "
        code, text = await act(browser, namespace, "promote", token=paused["rollout"]["token"])
        assert code == 409 and "was rejected" in text
