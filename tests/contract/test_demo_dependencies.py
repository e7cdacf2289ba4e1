"""`make demo` alone installs a part of the lock file: all imports of the demo and the development cluster."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOADED = """
import json, pkgutil, importlib, sys
before = set(sys.modules)  # of what a virtual environment loads by itself
import devcluster, examples.demo.__main__
for module in pkgutil.walk_packages(devcluster.__path__, "devcluster."):
    module.name.endswith("__main__") or importlib.import_module(module.name)
found = [name for name in sys.modules.keys() - before if getattr(sys.modules[name], "__file__", None)]
print(json.dumps(sorted({name.partition(".")[0] for name in found})))
"""


def locked(extra: str) -> set[str]:
    """The names of the packages that the extra installs, with all that they depend on."""
    packages = {one["name"]: one for one in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    found: set[str] = set()
    wanted = [one["name"] for one in packages["slipway"]["optional-dependencies"][extra]]
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            wanted += [one["name"] for one in packages[name].get("dependencies", ())]
    return found


def test_the_demo_imports_nothing_that_its_extra_does_not_install() -> None:
    program = [sys.executable, "-c", LOADED]
    modules = json.loads(subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    owners = packages_distributions()
    needed = {owner.lower().replace("_", "-") for module in modules for owner in owners.get(module, ())}
    assert {"openai", "rich"} <= needed
    assert needed - locked("demo") - {"slipway"} == set()


def test_the_demo_installs_nothing_that_computes_models() -> None:
    assert not {"torch", "triton", "transformers", "ziglang"} & locked("demo")
