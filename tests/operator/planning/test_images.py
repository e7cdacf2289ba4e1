"""Which revisions get a smaller image: new ones whose spec says that they do without torch, or without a device."""

from dataclasses import replace
from typing import Any

import pytest

from slipway_operator.model.inputs.pod_inputs import parse_inputs
from slipway_operator.planning.decided import PlanSettings
from tests.support.model_cluster import ModelCluster, healthy

SMALL = "slipway-server-predict:1"
LARGE, FOR_CPUS = "slipway-server:1", "slipway-server:1-cpu"
IRIS = {"uri": "s3://bucket/iris", "task": "predict", "format": "onnx", "version": "v2"}


def images(world: ModelCluster) -> list[str]:
    """Of each revision, in order."""
    return [one.image for one in sorted(world.snapshots.values(), key=lambda one: one.ordinal)]


def with_small_image() -> ModelCluster:
    """One that serves a language model, with an operator that was upgraded since."""
    world = healthy()
    world.settings = replace(world.settings, predict_image=SMALL)
    return world


def release(world: ModelCluster, model: dict[str, Any], **changes: Any) -> None:
    world.edit(model=model, **changes)
    world.reconcile()


@pytest.mark.parametrize("format", ["onnx", "xgboost", "lightgbm", "skops"])
@pytest.mark.parametrize("task", ["predict", "classify"])
def test_a_format_that_the_spec_names_gets_it(task: str, format: str) -> None:
    world = with_small_image()
    release(world, IRIS | {"task": task, "format": format})
    assert images(world) == [LARGE, SMALL]


@pytest.mark.parametrize(
    "model",
    [
        {"uri": "hf://a/b", "version": "v2"},
        IRIS | {"format": "auto"},
        IRIS | {"task": "classify", "format": "transformers"},
        {"uri": "hf://a/b", "task": "rerank", "version": "v2"},
    ],
    ids=["language", "auto", "transformers", "rerank"],
)
def test_all_others_get_the_image_that_serves_all(model: dict[str, Any]) -> None:
    world = with_small_image()
    release(world, model)
    assert images(world) == [LARGE, LARGE]


def test_an_image_in_the_spec_comes_first() -> None:
    world = with_small_image()
    release(world, IRIS, engine={"image": "mine:1"})
    assert images(world) == [LARGE, "mine:1"]


def test_a_member_of_a_pool_runs_in_the_image_of_the_pool() -> None:
    world = with_small_image()
    assert world.settings.image_of(parse_inputs({"model": IRIS}, "iris")) == SMALL
    assert world.settings.image_of(parse_inputs({"model": IRIS, "pool": {"name": "shared"}}, "iris")) == LARGE


def test_a_change_of_the_setting_changes_no_revision() -> None:
    world = with_small_image()
    release(world, IRIS)
    for image in ("slipway-server-predict:2", ""):
        world.settings = replace(world.settings, predict_image=image)
        for _ in range(3):
            world.reconcile()
        assert images(world) == [LARGE, SMALL]


def image_of(**spec: Any) -> str:
    settings = PlanSettings(LARGE, "http://gateway/v1", predict_image=SMALL, cpu_image=FOR_CPUS)
    return settings.image_of(parse_inputs({"model": {"uri": "hf://a/b"}} | spec, "chat"))


@pytest.mark.parametrize(
    ("spec", "image"),
    [
        ({}, FOR_CPUS),
        ({"resources": {"cpu": "4"}}, FOR_CPUS),
        ({"model": IRIS}, SMALL),
        ({"model": IRIS | {"format": "auto"}}, FOR_CPUS),
        ({"resources": {"accelerator": {"resource": "nvidia.com/gpu", "count": 1}}}, LARGE),
        ({"resources": {"accelerator": {"type": "a100", "count": 1}}}, LARGE),
        ({"resources": {"accelerator": {"resourceClaimTemplateName": "gpu", "count": 1}}}, LARGE),
        ({"engine": {"image": "mine:1"}}, "mine:1"),
        ({"pool": {"name": "shared"}}, LARGE),
    ],
    ids=str,
)
def test_pods_without_a_device_get_the_image_for_cpus(spec: dict[str, Any], image: str) -> None:
    assert image_of(**spec) == image
