"""No input can make product code run it: the calls and modules that could are absent."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from testkit import ROOT
from tests.contract import figures

PACKAGES = tuple(map(figures.folder, figures.NAMES))
SOURCES = sorted(path for folder in PACKAGES for path in folder.rglob("*.py"))

# Modules that build objects, or code, out of bytes.
MODULES = frozenset(
    {
        "pickle",
        "_pickle",
        "cPickle",
        "marshal",
        "dill",
        "cloudpickle",
        "shelve",
        "joblib",
        "jsonpickle",
        "code",
        "codeop",
    }
)
BUILTINS = frozenset({"eval", "exec", "compile", "__import__"})
CALLS = frozenset(
    {"torch.load", "torch.jit.load", "torch.hub.load", "torch.package.PackageImporter", "torch.save"}
    | {"yaml.unsafe_load", "yaml.full_load", "yaml.unsafe_load_all", "yaml.full_load_all", "os.system", "os.popen"}
    | {"subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell", "runpy.run_path"}
    | {"runpy.run_module", "pandas.read_pickle", "pty.spawn"}
)
SAFE_LOADERS = frozenset({"SafeLoader", "CSafeLoader", "BaseLoader", "CBaseLoader"})


def violations(source: str) -> list[str]:
    """What of a file's text may not be there, by line."""
    return [f"{line}: {what}" for line, what in sorted(_found(ast.parse(source)))]


def _found(tree: ast.Module) -> Iterator[tuple[int, str]]:
    names = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] in MODULES:
            yield node.lineno, str(node.module)
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, what) for what in _calls(node, names))


def _calls(call: ast.Call, names: dict[str, ast.expr]) -> Iterator[str]:
    name = ast.unparse(call.func)
    if name in BUILTINS or name in CALLS or name.removeprefix("builtins.") in BUILTINS:
        yield name
    if name in ("yaml.load", "yaml.load_all") and not _loader_is_safe(call, names):
        yield "yaml.load without a safe loader"
    for keyword in call.keywords:
        if keyword.arg == "shell" and not _is(keyword.value, False):
            yield "shell="
        if keyword.arg in ("allow_pickle", "trust_remote_code") and not _is(keyword.value, False):
            yield f"{keyword.arg}="


def _loader_is_safe(call: ast.Call, names: dict[str, ast.expr]) -> bool:
    """By the name of the loader, or by a name of the module that includes it."""
    given = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "Loader")]
    if not given:
        return False
    loader = ast.unparse(names.get(ast.unparse(given[0]), given[0]))
    found = set(re.findall(r"\w*Loader\b", loader))
    return bool(found) and found <= SAFE_LOADERS


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


@pytest.mark.finding(26)
@pytest.mark.attack_class(3, 4, 7, 26, 27)
@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_in_the_tree_builds_objects_or_code_out_of_bytes(package: str) -> None:
    found = {path: violations(path.read_text()) for path in SOURCES if path.is_relative_to(ROOT / package)}
    assert found, "a package without a file"
    assert not {str(path.relative_to(ROOT)): lines for path, lines in found.items() if lines}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "import joblib.numpy_pickle",
        "from marshal import loads",
        "torch.load(path, weights_only=True)",
        "yaml.load(text)",
        "yaml.load(text, yaml.Loader)",
        "_LOADER = yaml.FullLoader\nyaml.load_all(text, _LOADER)",
        "yaml.unsafe_load(text)",
        "eval(text)",
        "builtins.exec(text)",
        "subprocess.run(words, shell=True)",
        "subprocess.run(words, shell=flag)",
        "os.system(words)",
        "numpy.load(path, allow_pickle=True)",
        "AutoModel.from_pretrained(path, trust_remote_code=True)",
    ],
)
def test_each_forbidden_call_is_found(line: str) -> None:
    assert violations(line)


@pytest.mark.parametrize(
    "line",
    [
        "re.compile(text)",
        "yaml.load(text, yaml.CSafeLoader)",
        "L = yaml.SafeLoader\nyaml.load_all(text, L)",
        "model.eval()",
        "json.loads(text)",
        "run(x, shell=False)",
    ],
)
def test_other_calls_are_allowed(line: str) -> None:
    assert not violations(line)


@pytest.mark.attack_class(3, 27)
def test_no_program_of_the_images_gets_a_shell_line() -> None:
    """Containers start programs with arguments, never `sh -c` with a text."""
    manifests = [path for path in SOURCES if "manifests" in path.parts]
    assert manifests
    assert not [path for path in manifests if re.search(r"""["'](/bin/)?(ba)?sh["']""", path.read_text())]


# Paths that run a model, return vectors or convert tokens to text. None takes code, a file's path or a model's URL.
POSTS = {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/tokenize",
    "/detokenize",
    "/v1/generate",
    "/api/v1/generate",
    "/api/v1/embed",
    "/api/v1/predict",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/v1/score",
    "/score",
    "/classify",
    "/v1/models/{name:.+}:predict",
    "/v2/repository/index",  # lists, and loads nothing
    "{model}/infer",
    # Of a pool: they name a model of its file, the administrator's. No path, URL, configuration or file is taken.
    "{MODEL}/load",
    "{MODEL}/unload",
}


@pytest.mark.attack_class(1, 27)
def test_the_server_has_no_endpoint_that_takes_code_or_loads_models() -> None:
    """Every path that takes a body is one of inference: review a new one before you add it here."""
    text = "".join(
        path.read_text() for path in SOURCES if path.is_relative_to(ROOT / "server") and "http" in path.parts
    )
    posts = set(re.findall(r"""(?:add_post|web\.post)\(\s*f?["']([^"']+)["']""", text))
    assert posts and posts <= POSTS | {path for path in posts if path.startswith("/api/v1/models/{")}
    assert not re.findall(r"""(?:add_put|add_patch|add_delete|web\.(?:put|patch|delete))\(""", text)


def test_sources_are_those_of_the_product() -> None:
    assert all(isinstance(path, Path) and path.is_file() for path in SOURCES) and len(SOURCES) > 100
