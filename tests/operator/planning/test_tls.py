"""Pods of which revisions serve HTTPS: new ones only, and of an engine that can."""

from dataclasses import replace

import pytest

from tests.support.model_cluster import ModelCluster, healthy, model


def switch(world: ModelCluster, *, on: bool) -> None:
    world.settings = replace(world.settings, tls=on)


def secure(world: ModelCluster) -> list[bool]:
    """Of each revision, in order."""
    return [one.tls for one in sorted(world.snapshots.values(), key=lambda one: one.ordinal)]


@pytest.mark.parametrize("first", [False, True])
def test_a_switch_makes_no_revision_and_changes_none(first: bool) -> None:
    world = healthy()
    switch(world, on=True)
    for _ in range(3):
        world.reconcile()
    assert secure(world) == [False]
    if first:
        switch(world, on=False)
        world.reconcile()
        assert secure(world) == [False]


def test_the_next_revision_has_it_and_keeps_it() -> None:
    world = healthy()
    switch(world, on=True)
    world.edit(model=model("v2"))
    world.run_until("Paused")
    assert secure(world) == [False, True]
    switch(world, on=False)
    world.reconcile()
    assert secure(world) == [False, True]


def test_another_engine_has_none() -> None:
    world = healthy()
    switch(world, on=True)
    world.edit(engine={"type": "vllm", "image": "vllm/vllm-openai:v0.11.0"}, model={"uri": "hf://a/b", "version": "v2"})
    world.reconcile()
    assert secure(world) == [False] * len(world.snapshots)
    assert len(world.snapshots) == 2
