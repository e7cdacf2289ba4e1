"""A real MLflow tracking server: an alias that moves is a canary, pods fetch its files, and its verdict comes back."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from slipway_operator.component import NotYet, ReconciledDeployment
from slipway_operator.kube.client import Client
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods.workload import replica_set
from slipway_operator.model.cluster.observed import Observed, RegistryAnswer, Snapshot
from slipway_operator.model.cluster.plan import Plan
from slipway_operator.outbound.addresses import EgressPolicy
from slipway_operator.outbound.dialer import Dialer
from slipway_operator.planning.facts import registry, verdicts
from slipway_operator.registry.client import MlflowClient
from slipway_operator.registry.runner import ALWAYS, RegistryRunner
from testkit import ROOT
from testkit.until import until_async
from tests.fetcher.site import contents, run
from tests.operator.registry.tracking import NOW, Api, Bench, Tracking, deployment
from tests.support.model_cluster import SETTINGS, ModelCluster, cluster
from tests.support.stores.mlflow import Mlflow, mlflow

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(900)]

OWNER = Owner("chat", "ns", "6f0e3a52-0000-4000-8000-000000000000")
URI = "models:/chat@champion"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mlflow]:
    with mlflow(tmp_path_factory.mktemp("mlflow")) as started:
        yield started


async def looked_up(of: Bench, one: ReconciledDeployment) -> RegistryAnswer:
    """The answer of the next look."""
    try:
        of.runner.observe(one, Observed())
        of.due()
    except NotYet:
        pass
    assert await of.next() == one.key
    found = of.runner.observe(one, Observed()).registry
    assert found
    return found


def fetched(snapshot: Snapshot, dest: Path) -> str:
    """The digest of what the revision's fetcher brings, run with the arguments of its pod."""
    pod = replica_set(OWNER, snapshot, 1)["spec"]["template"]["spec"]
    arguments = list(pod["initContainers"][0]["args"])
    uri = snapshot.inputs.model.uri
    for flag in ("--uri", "--dest"):
        at = arguments.index(flag)
        del arguments[at : at + 2]
    code, words, log = run(dest, uri, *arguments, "--allow-host", "127.0.0.1")
    assert code == 0, words + log
    return str(json.loads(words)["weights"]["digest"])


def is_open(runner: RegistryRunner) -> bool:
    return any(one.wanted != one.confirmed for one in runner._verdicts.values())


def snapshot_of(world: ModelCluster, version: str) -> Snapshot:
    found = [one for one in world.snapshots.values() if one.inputs.registry and one.inputs.registry.version == version]
    assert len(found) == 1
    return found[0]


async def test_a_moved_alias_is_a_canary_whose_files_and_verdict_are_real(server: Mlflow, tmp_path: Path) -> None:
    versions = []
    for name, loss in (("tiny-v1", 0.5), ("tiny-v2", 0.25)):
        made_by = server.run({"loss": loss}, "wiki", contents(ROOT / "examples" / "models" / name))
        versions.append(server.register("chat", made_by))
    server.move("chat", "champion", versions[0])
    woken, api = asyncio.Queue[Any](), Api()
    client = MlflowClient(Dialer(EgressPolicy(loopback=True), "look-ups of models"), server.url)
    runner = RegistryRunner(
        cast(Client, api), client, woken.put_nowait, lambda: True, lambda: NOW, poll_s=3600.0, writes=ALWAYS
    )
    of, chat = Bench(Tracking(), api, runner, woken), deployment("chat", URI)
    task = asyncio.create_task(runner.run())
    try:
        found = await looked_up(of, chat)
        assert found.version and found.version.version == versions[0]
        assert (found.version.facts.owner, found.version.facts.metrics) == ("ann", ("loss=0.5",))
        assert found.version.facts.dataset == "wiki d1" and found.version.facts.description == "answers questions"

        world = cluster(model={"uri": URI})
        world.settings = replace(SETTINGS, tracking_url=server.url)
        world.registry = found
        world.run_until(None)
        first = fetched(snapshot_of(world, versions[0]), tmp_path / "first")

        server.move("chat", "champion", versions[1])
        world.registry = await looked_up(of, chat)
        world.run_until("Paused")
        assert world.weights() == {versions[0]: 90, versions[1]: 10}
        second = fetched(snapshot_of(world, versions[1]), tmp_path / "second")
        assert first != second and fetched(snapshot_of(world, versions[0]), tmp_path / "again") == first

        rollout = world.parsed().rollout
        assert rollout
        world.edit(rollout__abort=rollout.attempt_token)
        world.run_until("Aborted")
        runner.after(chat, world.observed(), Plan(world.parsed()), NOW)
        await until_async(lambda: not is_open(runner), "the verdict is written", 60)
        tags = server.tags("chat", versions[1])
        assert tags["slipway.ns.chat.verdict"] == verdicts.REJECTED and "UserAbort" in tags["slipway.ns.chat.reason"]
        assert not server.tags("chat", versions[0]) and not api.events

        for uri, reason in (
            ("models:/chat@missing", registry.NOT_FOUND),
            ("models:/chat/99", registry.NOT_FOUND),
            ("models:/other/1", registry.NOT_FOUND),
        ):
            failed = await looked_up(of, deployment("other", uri))
            assert (failed.version, failed.reason) == (None, reason)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await runner.close()
