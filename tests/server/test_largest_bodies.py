"""No body that a generating server takes stops its neighbours or takes much memory, whatever is in it."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testkit.load.watch import Watch
from testkit.load.watcher import Observed
from tests.server.largest_bodies import LARGEST, LIMIT_BYTES
from tests.server.process import ServerProcess
from tests.support.largest import GZIP, MODEL, PLAIN, LargeBody, Target

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.finding("F1"),
    pytest.mark.attack_class(15, 18),
]

SAMPLE = 8  # bodies of an ordinary run
MOSTLY_PLAIN = [PLAIN] * 4 + [GZIP]  # a body that is compressed is refused at once
LONG_CONTEXT = 1 << 20
STREAM = {"model": MODEL, "prompt": "In the beginning", "max_tokens": 200, "ignore_eos": True, "stream": True}


@contextmanager
def served_model(folder: Path, *flags: str) -> Iterator[Target]:
    with ServerProcess(folder, "--served-model-name", MODEL, *flags) as server:
        pids = [server.wait_ready().process.pid, server.engine.pid]
        stream = Observed(f"{server.probe_url}/healthz", pids, f"{server.url}/v1/completions", json.dumps(STREAM))
        with Watch(stream) as watch:
            yield Target(server.url, LIMIT_BYTES, watch)


@pytest.fixture(scope="module")
def served(tiny_v1: Path) -> Iterator[Target]:
    with served_model(tiny_v1) as target:
        yield target


def test_some_of_the_largest_bodies_disturb_no_neighbour(served: Target, request: pytest.FixtureRequest) -> None:
    served.check_some(LARGEST, SAMPLE, request.config.getoption("randomly_seed", 1), MOSTLY_PLAIN)


@pytest.mark.extended
@pytest.mark.parametrize("encoding", [PLAIN, GZIP])
@pytest.mark.parametrize("body", LARGEST, ids=[body.name for body in LARGEST])
def test_the_largest_bodies_disturb_no_neighbour(served: Target, body: LargeBody, encoding: str) -> None:
    served.check(body, encoding)


@pytest.fixture(scope="module")
def with_long_context(tiny_v1: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The same model with a context into which most of the bodies fit; the engine keeps few tokens of it."""
    folder = tmp_path_factory.mktemp("long") / "model"
    shutil.copytree(tiny_v1, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": LONG_CONTEXT}))
    with served_model(folder, "--max-kv-tokens", "4096") as target:
        yield target


@pytest.mark.extended
@pytest.mark.parametrize("body", LARGEST, ids=[body.name for body in LARGEST])
def test_the_largest_bodies_disturb_no_neighbour_of_a_model_with_a_long_context(
    with_long_context: Target, body: LargeBody
) -> None:
    with_long_context.check(body, PLAIN)
