"""Installed versions are locked: hashes for every wheel, versions with digests for every base image."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.attack_class(28)


def test_every_locked_package_has_a_hash_for_each_of_its_files() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    packages = [package for package in lock["package"] if "registry" in package["source"]]
    assert len(packages) > 50
    for package in packages:
        files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else [])]
        assert files, f"{package['name']} has no file"
        assert all(one["hash"].startswith("sha256:") for one in files), f"{package['name']} has a file without a hash"


def test_nothing_is_locked_from_anywhere_but_a_registry() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    others = [package["name"] for package in lock["package"] if "registry" not in package["source"]]
    assert others == ["slipway"]


INSTALLS = re.compile(r"\bpip install (?P<rest>[^;&\n]*)|\b(curl|wget|npm) ")


@pytest.mark.parametrize("image", ["Dockerfile.operator", "Dockerfile.server"])
def test_images_install_what_is_locked_and_tools_of_one_version(image: str) -> None:
    text = (ROOT / image).read_text()
    installs = list(INSTALLS.finditer(text))
    assert len(installs) >= 3
    for one in installs:
        rest = one["rest"] or ""
        tools = [word for word in rest.split() if re.match(r"[a-z]", word)]
        exact = bool(tools) and all("==" in tool for tool in tools)
        assert exact or "--require-hashes" in rest or "--no-deps" in rest, one.group()


def test_go_modules_are_locked_by_checksums() -> None:
    modules = sorted((ROOT / "devcluster" / "gomods").rglob("go.mod"))
    assert modules
    assert all((module.parent / "go.sum").exists() for module in modules)


def test_no_path_file_runs_code_when_python_starts() -> None:
    """LiteLLM's stolen release ran by a `.pth` file that imports."""
    assert not [path for path in ROOT.rglob("*.pth") if ".venv" not in path.parts and "build" not in path.parts]
