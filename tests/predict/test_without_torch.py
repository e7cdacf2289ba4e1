"""A server of classic models in an environment of slipway[predict] alone, as in the image slipway-server-predict."""

import base64
import os
import shutil
import subprocess
import venv
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest

from slipway_server.__main__ import LIBRARIES, absent
from testkit import ROOT
from testkit.pictures import digit, encoded
from tests.predict.conftest import PREDICT
from tests.predict.pool.running import write
from tests.server.process import SOURCES, ServerProcess, post
from tests.support.locked import locked

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

MODELS = ROOT / "examples" / "models"
ENVIRONMENT = dict(os.environ, PYTHONPATH=SOURCES)
ROWS = [[5.1, 3.5, 1.4, 0.2], [6.9, 3.1, 5.4, 2.1]]
REFUSED = [
    ("digits-vit", ("--task", "classify", "--format", "transformers"), "The format transformers needs torch and"),
    ("tiny-reranker", ("--task", "rerank"), "The format transformers needs torch and"),
    ("tiny-v1", (), "--task auto needs torch and"),
]


def link(source: str, target: str) -> None:
    """A second name of the file, or a copy where the file system has no such names."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The interpreter of a virtual environment with the packages of this extra in the lock file, and no other one."""
    root = tmp_path_factory.mktemp("predict")
    venv.create(root, symlinks=True, with_pip=False)
    [packages] = root.glob("lib/python3*/site-packages")
    for name in locked("predict"):
        for file in distribution(name).files or ():
            if ".." not in file.parts and "tests" not in file.parts and file.suffix != ".pyc":
                target = packages / file
                target.parent.mkdir(parents=True, exist_ok=True)
                link(str(file.locate()), str(target))
    yield root / "bin" / "python"
    shutil.rmtree(root)


def test_the_environment_has_neither_torch_nor_transformers(python: Path) -> None:
    code = "from slipway_server.__main__ import absent; print(absent())"
    found = subprocess.run([python, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(LIBRARIES)
    assert absent() == []


@pytest.mark.parametrize("format", ["onnx", "xgboost", "lightgbm", "skops"])
def test_each_format_answers(python: Path, models: Path, format: str) -> None:
    with ServerProcess(models / format, *PREDICT, "--format", format, python=python) as server:
        status, _, answer = post(f"{server.wait_ready().url}/v1/models/m:predict", {"instances": ROWS})
    assert (status, answer) == (200, {"predictions": [0, 2]})


def test_a_model_that_needs_no_torch_does_not_load_it_where_it_is(models: Path) -> None:
    """skops imports each module of scikit-learn, and one of these imports torch: half a gigabyte."""
    with ServerProcess(models / "skops", *PREDICT) as server:
        status, _, answer = post(f"{server.wait_ready().url}/v1/models/m:predict", {"instances": ROWS})
        mapped = Path(f"/proc/{server.engine.pid}/maps").read_text()
    assert (status, answer) == (200, {"predictions": [0, 2]})
    assert "sklearn" in mapped and "libtorch" not in mapped


def test_an_image_is_decoded_and_classified(python: Path) -> None:
    file = base64.b64encode(encoded(digit(3))).decode()
    with ServerProcess(MODELS / "digits-onnx", *PREDICT, "--format", "onnx", python=python) as server:
        status, _, answer = post(f"{server.wait_ready().url}/v1/models/m:predict", {"instances": [{"b64": file}]})
    assert (status, answer) == (200, {"predictions": ["three"]})


@pytest.mark.parametrize(("name", "flags", "words"), REFUSED, ids=[name for name, *_ in REFUSED])
def test_what_needs_torch_is_refused_with_the_image_to_use(
    python: Path, tmp_path: Path, name: str, flags: tuple[str, ...], words: str
) -> None:
    written = tmp_path / "termination"
    with ServerProcess(MODELS / name, *flags, termination_log=written, python=python) as server:
        assert server.wait() == os.EX_DATAERR, server.lines
    sentence = written.read_text()
    assert sentence.startswith(words) and "use the image slipway-server, by spec.engine.image" in sentence
    assert sentence.count("\n") == 0


def test_in_a_pool_only_the_member_that_needs_torch_is_missing(python: Path, tmp_path: Path) -> None:
    for name in ("digits-onnx", "digits-vit"):
        shutil.copytree(MODELS / name, tmp_path / name)
    vit = {"name": "vit", "path": "digits-vit", "version": "1", "task": "classify", "format": "transformers"}
    write(tmp_path, {"name": "digits", "path": "digits-onnx", "version": "1"}, vit)
    flags = ("--task", "predict", "--pool-config", str(tmp_path / "pool.json"))
    file = base64.b64encode(encoded(digit(3))).decode()
    with ServerProcess(tmp_path, *flags, python=python) as server:
        url = server.wait_ready().url
        refused, _, problem = post(f"{url}/v1/models/vit:predict", {"instances": [{"b64": file}]})
        status, _, answer = post(f"{url}/v1/models/digits:predict", {"instances": [{"b64": file}]})
    assert (status, answer) == (200, {"predictions": ["three"]})
    assert (refused, problem["code"]) == (503, "model_unavailable")
    assert "use the image slipway-server" in problem["error"]


def test_the_fetcher_takes_a_model(python: Path, tmp_path: Path) -> None:
    code = "from slipway_fetcher.__main__ import main; main()"
    arguments = ["--uri", f"file://{MODELS}/iris-onnx", "--dest", str(tmp_path), "--format", "auto"]
    command = [python, "-c", code, *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
