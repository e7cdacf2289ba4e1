"""Code that a model folder brings is never run: not by the HTTP process, the engine, the fetcher or the gateway."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slipway_process.model_folder.checkpoint import CheckpointError, read
from slipway_server.engine.execution.encoder import read_pooling
from slipway_server.models.devices import LoadError
from slipway_server.models.generator import load_generator
from slipway_server.models.loader import load

pytestmark = [pytest.mark.integration, pytest.mark.attack_class(5), pytest.mark.finding(26, "S13")]

CODE = "from pathlib import Path\nPath({ran!r}).touch()\nraise SystemExit('code of the folder ran')\n"
FILES = (
    "configuration_evil.py",
    "modeling_evil.py",
    "tokenization_evil.py",
    "__init__.py",
    "custom_generate/generate.py",
)
CLASSES = {
    "AutoConfig": "configuration_evil.EvilConfig",
    "AutoModel": "modeling_evil.EvilModel",
    "AutoModelForCausalLM": "modeling_evil.EvilForCausalLM",
    "AutoTokenizer": ["tokenization_evil.EvilTokenizer", "tokenization_evil.EvilTokenizerFast"],
}


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    return tmp_path / "ran"


@pytest.fixture
def hostile(tiny_v1: Path, tmp_path: Path, ran: Path) -> Path:
    """A whole model whose every file that may name code names some."""
    folder = Path(shutil.copytree(tiny_v1, tmp_path / "model"))
    for name in FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(CODE.format(ran=str(ran)))
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        path = folder / name
        found = json.loads(path.read_bytes()) if path.is_file() else {}
        path.write_text(
            json.dumps(found | {"auto_map": CLASSES, "custom_pipelines": {"x": {"impl": "modeling_evil.X"}}})
        )
    return folder


def change(folder: Path, **fields: object) -> dict[str, object]:
    config = json.loads((folder / "config.json").read_bytes()) | fields
    (folder / "config.json").write_text(json.dumps(config))
    return dict(config)


def generator(folder: Path) -> object:
    config = json.loads((folder / "config.json").read_bytes())
    return load_generator(
        folder, config, dtype="float32", quantization="none", device="cpu", context_tokens=64, threads=1
    )


def by_transformers(task: str) -> Callable[[Path], object]:
    return lambda folder: load(folder, task=task, dtype="auto", device="cpu")


@pytest.mark.parametrize("loaded", [read, generator, by_transformers("generate"), by_transformers("embed")])
def test_a_known_architecture_loads_without_the_code_beside_it(
    loaded: Callable[[Path], object], hostile: Path, ran: Path
) -> None:
    assert loaded(hostile)
    assert not ran.exists()


def test_an_architecture_that_needs_the_code_is_refused_by_its_name(hostile: Path, ran: Path) -> None:
    change(hostile, model_type="evil", architectures=["EvilForCausalLM"])
    with pytest.raises(LoadError, match=r"'evil' needs code of the folder, which is never run \(configuration_evil"):
        generator(hostile)
    with pytest.raises(CheckpointError, match="no encoder of text that this server knows"):
        read(hostile, task="embed")
    assert not ran.exists()


def test_transformers_never_gets_trust_remote_code(hostile: Path, ran: Path) -> None:
    change(hostile, model_type="evil", architectures=["EvilForCausalLM"])
    with pytest.raises(LoadError, match="cannot be loaded"):
        by_transformers("generate")(hostile)
    assert not ran.exists()


def test_layers_of_an_encoder_that_are_code_of_the_folder_are_refused(hostile: Path, ran: Path) -> None:
    """`custom_st.Transformer` was taken for sentence-transformers' own."""
    (hostile / "modules.json").write_text(json.dumps([{"type": "modeling_evil.Transformer"}]))
    with pytest.raises(LoadError, match=r"code of the model folder, which is never run: modeling_evil\.Transformer"):
        read_pooling(hostile)
    assert not ran.exists()


def test_a_pickle_of_the_folder_is_not_opened(hostile: Path, ran: Path) -> None:
    """Class 4: one that would run a program when it is loaded lies beside the weights."""
    pickled = f"cos\nsystem\n(S'touch {ran}'\ntR.".encode()
    for name in ("pytorch_model.bin", "model.pkl", "optimizer.pt", "training_args.bin"):
        (hostile / name).write_bytes(pickled)
    assert read(hostile) and generator(hostile) and by_transformers("generate")(hostile)
    assert not ran.exists()


def test_gateway_and_command_line_cannot_load_a_model_at_all() -> None:
    """They have no library that could: nothing of theirs imports one."""
    script = (
        "import sys, pkgutil, importlib\n"
        "import slipway_gateway\n"
        "for module in pkgutil.walk_packages(slipway_gateway.__path__, 'slipway_gateway.'):\n"
        "    if not module.name.endswith('__main__'): importlib.import_module(module.name)\n"
        "bad = {'torch', 'transformers', 'tokenizers', 'safetensors', 'jinja2', 'pickle5'} & set(sys.modules)\n"
        "sys.exit(f'imported: {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
