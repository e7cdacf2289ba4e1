"""`slipway plan`: packing beside a solver, models that do not fit, and what a file may not have."""

import random
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.optimize import Bounds, LinearConstraint, milp

from slipway_cli.commands.root import cli
from slipway_cli.packing.bins import Bin, Item, bound, pack
from slipway_cli.packing.plan import plan
from slipway_cli.packing.request import GpuType, Model, PlanRequest, read

H100, L4 = GpuType("h100", 80.0, 4.0), GpuType("l4", 24.0, 0.8)


def instance(seed: int, models: int = 30) -> list[Item]:
    """Models of 0.5 to 40 GB on cards of 80 GB; each takes up to half of a card's compute."""
    rng = random.Random(seed)
    return [Item(f"m{n:02}", rng.uniform(0.5, 40.0) / 80.0, rng.uniform(0.01, 0.5)) for n in range(models)]


def solved(items: list[Item], most: int, seconds: float) -> int:
    """The fewest GPUs by HiGHS, with at most `most`; where its time is over, its own lower bound."""
    count = len(items)
    # Variables: x[i, b] whether pod i is on GPU b, then y[b] whether GPU b is used.
    size = count * most + most
    rows = []
    for i in range(count):
        row = np.zeros(size)
        row[i * most : (i + 1) * most] = 1
        rows.append((row, 1.0, 1.0))
    for b in range(most):
        for share in ("memory", "compute"):
            row = np.zeros(size)
            row[[i * most + b for i in range(count)]] = [getattr(item, share) for item in items]
            row[count * most + b] = -1
            rows.append((row, -np.inf, 0.0))
        if b:
            row = np.zeros(size)
            row[count * most + b], row[count * most + b - 1] = 1, -1
            rows.append((row, -np.inf, 0.0))
    cost = np.concatenate([np.zeros(count * most), np.ones(most)])
    result = milp(
        cost,
        constraints=LinearConstraint(*map(np.array, zip(*rows, strict=True))),
        integrality=np.ones(size),
        bounds=Bounds(0, 1),
        options={"time_limit": seconds},
    )
    return round(result.fun) if result.status == 0 else int(np.ceil(result.mip_dual_bound - 1e-6))


@pytest.mark.parametrize("seed", range(40))
def test_a_packing_holds_every_pod_once_and_no_gpu_too_many(seed: int) -> None:
    items = instance(seed)
    bins = pack(items)
    assert sorted(item.name for each in bins for item in each.items) == [item.name for item in items]
    for each in bins:
        assert sum(item.memory for item in each.items) <= 1 + 1e-6
        assert sum(item.compute for item in each.items) <= 1 + 1e-6
    assert len(bins) >= bound(items)
    assert [[item.name for item in each.items] for each in pack(items)] == [
        [item.name for item in each.items] for each in bins
    ], "it is deterministic"


def test_the_sum_of_gpus_is_near_a_solvers() -> None:
    ours = theirs = 0
    for seed in range(6):
        items = instance(seed, models=14)
        packed = len(pack(items))
        ours, theirs = ours + packed, theirs + solved(items, packed, 4.0)
    assert ours <= 1.05 * theirs


def request(*models: Model, types: tuple[GpuType, ...] = (H100, L4)) -> PlanRequest:
    return PlanRequest(list(types), list(models))


def test_a_small_model_takes_the_cheap_type_and_a_large_one_whole_gpus() -> None:
    small = Model("small", 10.0, 8.0, {"h100": 40.0, "l4": 10.0})
    large = Model("large", 140.0, 5.0, {"h100": 4.0}, gpus=2)
    made = plan(request(small, large))
    assert {model.model: (model.gpu_type, model.pods) for model in made.models} == {
        "small": ("l4", 1),
        "large": ("h100", 2),
    }
    assert made.price_per_hour == pytest.approx(0.8 + 4 * 4.0)
    assert made.bound <= made.price_per_hour


def test_models_share_a_gpu_within_its_memory_and_its_compute() -> None:
    several = [Model(f"m{n}", 20.0, 10.0, {"h100": 50.0}) for n in range(4)]
    made = plan(request(*several, types=(H100,)))
    (gpus,) = made.gpus
    assert gpus.gpus == 1 and len(gpus.shared[0]) == 4
    fifth = plan(request(*several, Model("m4", 1.0, 10.0, {"h100": 50.0}), types=(H100,)))
    assert fifth.gpus[0].gpus == 2


def test_what_does_not_fit_is_named_with_the_reason() -> None:
    huge = Model("huge", 200.0, 1.0, {"l4": 1.0})
    much = Model("much", 60.0, 100.0, {"h100": 10.0})
    made = plan(request(huge, much, types=(GpuType("h100", 80.0, 4.0, 3), L4)))
    assert made.left_out == {
        "huge": "a pod needs 200 GB on 1 GPUs, and its types have 24 GB at most",
        "much": "there are not enough GPUs of type h100",
    }


@pytest.mark.parametrize("capacity", [1.0, 1e-12, 1e-310, 5e-324])
@pytest.mark.parametrize(("gpus", "most"), [(0, 5_000), (1, 1_000_000)])
def test_a_demand_of_endless_pods_is_named_before_there_is_a_list_of_them(
    capacity: float, gpus: int, most: int
) -> None:
    endless, small = Model("endless", 1.0, 1e12, {"h100": capacity}, gpus), Model("small", 1.0, 1.0, {"h100": 5.0})
    made = plan(request(endless, small))
    assert made.left_out == {"endless": f"it takes more than {most} pods of each of its types"}
    assert [model.model for model in made.models] == ["small"]
    slow_too = plan(request(Model("m", 1.0, 1e6, {"h100": 1e6, "l4": capacity})))
    assert slow_too.models[0].gpu_type == "h100"


def test_the_work_for_a_large_file_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each model tries each type, and each try packs all: without a bound that takes hours."""
    compared = 0
    fits = Bin.fits

    def counted(self: Bin, item: Item) -> bool:
        nonlocal compared
        compared += 1
        return fits(self, item)

    monkeypatch.setattr(Bin, "fits", counted)
    monkeypatch.setattr("slipway_cli.packing.plan.MOST_OF_PLAN", 300_000)
    rng = random.Random(1)
    types = tuple(GpuType(f"t{n}", 80.0, rng.uniform(1.0, 2.0), 20) for n in range(8))
    several = [
        Model(f"m{n}", rng.uniform(1.0, 60.0), 9.0, {gpu.name: rng.uniform(1.0, 9.0) for gpu in types})
        for n in range(120)
    ]
    made = plan(request(*several, types=types))
    assert compared < 2 * 300_000
    assert len(made.models) + len(made.left_out) == 120
    assert all(gpu.gpus <= 20 for gpu in made.gpus) and made.bound <= made.price_per_hour


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpuTypes: []\nmodels: []", "gpuTypes"),
        ("gpuTypes: [{name: a, memoryGb: -1, pricePerHour: 1}]\nmodels: []", "memoryGb"),
        (
            "gpuTypes: [{name: a, memoryGb: 1, pricePerHour: 1}]\n"
            "models: [{name: m, memoryGb: 1, demand: 1, capacity: {b: 1}}]",
            "names b",
        ),
        ("x", "object"),
    ],
)
def test_a_wrong_file_is_refused_by_its_field(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read(text.encode())
    (tmp_path / "plan.yaml").write_text(text)
    result = CliRunner().invoke(cli, ["plan", str(tmp_path / "plan.yaml")])
    assert result.exit_code == 1 and message in str(result.exception)


def test_the_command_prints_the_plan(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(
        "gpuTypes:\n- {name: h100, memoryGb: 80, pricePerHour: 4}\n"
        "models:\n- {name: chat, memoryGb: 18, demand: 3000, capacity: {h100: 1100}}\n"
    )
    result = CliRunner().invoke(cli, ["plan", str(file)])
    assert result.exit_code == 0, result.output
    assert "chat    h100   4" in result.output and "16.00 an hour, 11680 a month" in result.output
