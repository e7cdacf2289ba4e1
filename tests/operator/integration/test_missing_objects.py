"""The matrix of missing objects: whatever is missing in any phase, what serves stays; the end is as before, or a
condition says why. `tests/operator/planning/test_missing.py` has it without an API server."""

import time

import pytest
from aiohttp import web

from testkit.world.rights import limited_kubeconfig
from testkit.world.web import web_service

from .matrix.cells import PARTS, SHARED, cells, restores, rounds
from .matrix.world import World

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400), pytest.mark.finding("L1")]


@pytest.fixture
async def world(client, namespace, api_server, tmp_path):
    async def score(_):
        return web.json_response({"score": 0.9})

    limited = await limited_kubeconfig(client, namespace, api_server, tmp_path)
    async with web_service("GET", "/score", score) as url:
        world = World(client, namespace, api_server, limited, tmp_path, f"{url}/score")
        async with world.watching(), world.running():
            yield world


async def holds(world, part):
    """Whatever is missing of these cells: nothing else serves than before."""
    wanted, shared, began_s = cells(part), rounds(part), time.monotonic()

    def at(what):
        print(f"{time.monotonic() - began_s:.0f} s: {what}")

    await world.prepare(wanted[:1])
    await world.keep_older(SHARED)
    await world.prepare(wanted[1:])
    at(f"{len(wanted)} cells are in their phases")
    for one in shared:
        await world.strike_all(one, wanted)
        at(one)
    for restarts in (False, True):
        struck = [cell for cell in wanted if cell.restarts is restarts]
        await world.strike(struck, restarts=restarts)
        for cell in struck:
            print(f"  {cell}: {world.shown(cell.name)}")
        at(f"restarts: {restarts}")
    nothing_broke(world, wanted)


def nothing_broke(world, wanted):
    names = {cell.name: str(cell) for cell in wanted}
    broken = {names[name]: found for name, found in world.recorder.broken.items() if found}
    assert not broken, "\n".join(f"{cell}: {found[:3]}" for cell, found in broken.items())


async def test_whatever_is_missing_what_serves_stays(world, request):
    """A tenth of the matrix, by the seed of the run."""
    await holds(world, request.config.getoption("randomly_seed", 1))


@pytest.mark.extended
@pytest.mark.parametrize("part", range(PARTS))
async def test_whatever_is_missing_what_serves_stays_in_all_cells(world, part):
    await holds(world, part)


async def restored(world, part):
    """The backup lacks the status and one kind of objects."""
    wanted = restores(part)
    await world.prepare(wanted)
    await world.restore(wanted)
    for cell in wanted:
        print(f"  {cell}: {world.shown(cell.name)}")
    nothing_broke(world, wanted)


async def test_what_serves_stays_when_a_namespace_is_restored_without_a_kind(world, request):
    """Each phase and each kind once, together by the seed of the run."""
    await restored(world, request.config.getoption("randomly_seed", 1))


@pytest.mark.extended
@pytest.mark.timeout(900)
async def test_what_serves_stays_in_any_phase_when_a_namespace_is_restored_without_any_kind(world):
    await restored(world, None)
