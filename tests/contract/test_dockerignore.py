"""What the Dockerfiles copy reaches the builder: .dockerignore excludes all that it does not name."""

from pathlib import PurePosixPath

import pytest

from testkit import ROOT


def copied(dockerfile: str) -> set[str]:
    """Paths of the tree in its COPY instructions."""
    lines = (ROOT / dockerfile).read_text().replace("\\\n", " ").splitlines()
    found = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from=" not in line]
    return {source for sources in found for source in sources if not source.startswith("--")}


@pytest.mark.parametrize("dockerfile", ["Dockerfile.operator", "Dockerfile.server"])
def test_what_a_dockerfile_copies_is_in_the_context_of_the_build(dockerfile: str) -> None:
    ignored, *rules = (ROOT / ".dockerignore").read_text().split()
    assert ignored == "*"
    included = {PurePosixPath(rule[1:]) for rule in rules if rule.startswith("!")}
    sources = {PurePosixPath(source) for source in copied(dockerfile)}
    assert len(sources) > 4
    assert not {source for source in sources if not included & {source, *source.parents}}
