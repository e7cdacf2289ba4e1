"""No body that a gateway takes stops its neighbours or takes much memory, whatever is in it."""

import asyncio
import sys
from collections.abc import Iterator

import pytest

from devcluster.ports import reserve_port
from testkit.load.watch import Watch
from testkit.load.watcher import Observed
from testkit.world.program import Launch, running

from ..support.largest import GZIP, PLAIN, LargeBody, Target
from .largest_bodies import LARGEST, LIMIT_BYTES
from .mortal_engine import MortalEngine, ended_at_last
from .test_process import routes

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.finding("F6"),
    pytest.mark.attack_class(15, 18),
]

SAMPLE = 6  # bodies of an ordinary run
START_S = 120.0


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder, port, admin_port = tmp_path_factory.mktemp("gateway"), reserve_port(), reserve_port()
    engine = MortalEngine(folder, "engine.log", reserve_port())
    listed = routes(folder / "routes.yaml", engine.url)
    flags = (f"--port={port}", f"--admin-port={admin_port}", "--host=127.0.0.1", "--admin-host=127.0.0.1")
    url, admin_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
    command = (sys.executable, "-m", "slipway_gateway", f"--routes={listed}", *flags)
    with ended_at_last(engine):
        asyncio.run(engine.start())
        with running(Launch(command, {}, url, f"{admin_url}/readyz"), folder / "gateway.log", START_S) as server:
            observed = Observed(f"{admin_url}/healthz", [server.pid], f"{url}/v1/models")
            with Watch(observed) as watch:
                yield Target(url, LIMIT_BYTES, watch)


def test_some_of_the_largest_bodies_disturb_no_neighbour_of_a_gateway(
    edge: Target, request: pytest.FixtureRequest
) -> None:
    edge.check_some(LARGEST, SAMPLE, request.config.getoption("randomly_seed", 1), [PLAIN, PLAIN, GZIP])


@pytest.mark.extended
@pytest.mark.parametrize("encoding", [PLAIN, GZIP])
@pytest.mark.parametrize("body", LARGEST, ids=[body.name for body in LARGEST])
def test_the_largest_bodies_disturb_no_neighbour_of_a_gateway(edge: Target, body: LargeBody, encoding: str) -> None:
    edge.check(body, encoding)
