"""No body that a server of classic models takes stops its neighbours or takes much memory, whatever is in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testkit.load.watch import Watch
from testkit.load.watcher import Observed
from tests.predict import onnx_models, trained
from tests.predict.conftest import PREDICT
from tests.predict.largest_bodies import LARGEST, LARGEST_OF_POOL, LIMIT_BYTES
from tests.predict.pool.running import write
from tests.server.process import ServerProcess
from tests.support.largest import ENCODINGS, LargeBody, Target

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.finding("F5"),
    pytest.mark.attack_class(15, 18),
]

SAMPLE = 6  # bodies of an ordinary run
BATCH = "1024"  # rows: of the usual size a body would have thousands of them


def served(server: ServerProcess) -> Iterator[Target]:
    with server:
        pid = server.wait_ready().process.pid
        with Watch(Observed(f"{server.probe_url}/healthz", [pid], f"{server.url}/v1/models")) as watch:
            yield Target(server.url, LIMIT_BYTES, watch)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("pool")
    trained.save_trees(found / "m")
    onnx_models.identity(found / "t", ("BYTES",))
    onnx_models.identity(found / "n", ("FP64",))
    write(found, *({"name": name, "path": name, "version": "1", "pinned": True} for name in "mtn"))
    return found


@pytest.fixture(scope="module")
def pool(root: Path) -> Iterator[Target]:
    flags = ("--task", "predict", "--pool-config", str(root / "pool.json"), "--max-batch-size", BATCH)
    yield from served(ServerProcess(root, *flags))


@pytest.fixture(scope="module")
def one_model(root: Path) -> Iterator[Target]:
    yield from served(ServerProcess(root / "m", *PREDICT, "--max-batch-size", BATCH))


def test_some_of_the_largest_bodies_disturb_no_neighbour_of_a_pool(
    pool: Target, request: pytest.FixtureRequest
) -> None:
    pool.check_some(LARGEST_OF_POOL, SAMPLE, request.config.getoption("randomly_seed", 1), ENCODINGS)


@pytest.mark.extended
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("body", LARGEST_OF_POOL, ids=[body.name for body in LARGEST_OF_POOL])
def test_the_largest_bodies_disturb_no_neighbour_of_a_pool(pool: Target, body: LargeBody, encoding: str) -> None:
    pool.check(body, encoding)


@pytest.mark.extended
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("body", LARGEST, ids=[body.name for body in LARGEST])
def test_the_largest_bodies_disturb_no_neighbour_of_a_classic_model(
    one_model: Target, body: LargeBody, encoding: str
) -> None:
    one_model.check(body, encoding)
