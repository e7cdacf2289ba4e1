"""Installed versions are locked: hashes for every wheel, versions with digests for every base image."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from devcluster import pins

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


@pytest.mark.finding("F17")
@pytest.mark.parametrize("image", ["Dockerfile.operator", "Dockerfile.server"])
def test_images_install_what_has_a_hash(image: str) -> None:
    """Besides torch for CPUs, which the lock has no hash of, and the project's own wheel."""
    text = (ROOT / image).read_text()
    installs = list(INSTALLS.finditer(text))
    assert len(installs) >= 3
    for one in installs:
        rest = one["rest"] or ""
        own = "/tmp/wheel/" in text[one.end() : one.end() + 100] or "torch==${version}+cpu" in rest
        assert "--require-hashes" in rest or ("--no-deps" in rest and own), one.group()


@pytest.mark.finding("F17")
@pytest.mark.parametrize("image", ["Dockerfile.operator", "Dockerfile.server"])
def test_every_stage_is_built_on_one_base_by_its_digest(image: str) -> None:
    """A base is `BASE_IMAGE`, or a stage above."""
    text = (ROOT / image).read_text()
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", text, re.MULTILINE)
    names = {"${BASE_IMAGE}", *(name for _, name in stages if name)}
    assert stages and {base for base, _ in stages} <= names
    (default,) = re.findall(r"^ARG BASE_IMAGE=(\S+)$", text, re.MULTILINE)
    assert re.fullmatch(r"[a-z0-9./-]+:[\w.-]+@sha256:[0-9a-f]{64}", default)
    assert default == pins.PYTHON_BASE_IMAGE
    assert not re.search(r":latest\b", text)


@pytest.mark.finding("F17")
def test_actions_are_named_by_commit() -> None:
    used = [
        found
        for path in sorted((ROOT / ".github").rglob("*.yaml"))
        for found in re.findall(r"\buses: *(.+)", path.read_text())
    ]
    assert used and not [one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v[\d.]+", one)]


@pytest.mark.finding("F17")
@pytest.mark.parametrize("tool", ["uv", "hatchling", "ziglang"])
def test_tools_of_the_build_have_hashes(tool: str) -> None:
    text = (ROOT / "requirements" / f"{tool}.txt").read_text()
    packages = re.split(r"\n(?=\S)", text.strip())
    assert re.match(rf"{tool}==", next(one for one in packages if one.startswith(tool)))
    assert all(re.match(r"[\w-]+==\S+ ", one) and "--hash=sha256:" in one for one in packages)


def test_go_modules_are_locked_by_checksums() -> None:
    modules = sorted((ROOT / "devcluster" / "gomods").rglob("go.mod"))
    assert modules
    assert all((module.parent / "go.sum").exists() for module in modules)


def test_crates_are_locked_with_checksums_from_the_registry_alone() -> None:
    listed = subprocess.run(["git", "ls-files", "*Cargo.toml"], cwd=ROOT, capture_output=True, text=True, check=True)
    locks = [(ROOT / name).with_name("Cargo.lock") for name in listed.stdout.split()]
    assert locks
    for lock in locks:
        foreign = [one for one in tomllib.loads(lock.read_text())["package"] if "source" in one]
        assert foreign
        assert {one["source"] for one in foreign} == {"registry+https://github.com/rust-lang/crates.io-index"}
        assert all(re.fullmatch("[0-9a-f]{64}", one["checksum"]) for one in foreign)


def test_no_path_file_runs_code_when_python_starts() -> None:
    """LiteLLM's stolen release ran by a `.pth` file that imports."""
    assert not [path for path in ROOT.rglob("*.pth") if ".venv" not in path.parts and "build" not in path.parts]


def test_no_output_of_a_compiler_is_in_the_tree() -> None:
    """What cargo leaves names folders of the machine that built it."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    assert len(listed) > 1000
    compiled = (".a", ".d", ".o", ".pyc", ".rlib", ".rmeta", ".so")
    assert not [path for path in listed if path.endswith(compiled) or "target" in path.split("/")[:-1]]
