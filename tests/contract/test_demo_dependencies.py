"""`make demo` alone installs a part of the lock file: all imports of the demo and the development cluster."""

import json
import subprocess
import sys
from importlib.metadata import packages_distributions

from testkit import ROOT
from tests.support.locked import locked

LOADED = """
import json, pkgutil, importlib, sys
before = set(sys.modules)  # of what a virtual environment loads by itself
import devcluster, examples.demo.__main__
for module in pkgutil.walk_packages(devcluster.__path__, "devcluster."):
    module.name.endswith("__main__") or importlib.import_module(module.name)
found = [name for name in sys.modules.keys() - before if getattr(sys.modules[name], "__file__", None)]
print(json.dumps(sorted({name.partition(".")[0] for name in found})))
"""


def test_the_demo_imports_nothing_that_its_extra_does_not_install() -> None:
    program = [sys.executable, "-c", LOADED]
    modules = json.loads(subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    owners = packages_distributions()
    needed = {owner.lower().replace("_", "-") for module in modules for owner in owners.get(module, ())}
    assert {"openai", "rich"} <= needed
    assert needed - locked("demo") - {"slipway"} == set()


def test_the_demo_installs_nothing_that_computes_models() -> None:
    assert not {"torch", "triton", "transformers", "ziglang"} & locked("demo")
