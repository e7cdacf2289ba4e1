"""The pages are in plain English, and the glossary is short and up to date."""

import re
from collections import Counter
from pathlib import Path

import pytest

from testkit import ROOT
from tests.contract import figures

# They mark prose in which things speak ("is told", "says nobody"): name the actor and the action instead.
WORDS = (
    "told",
    "tell",
    "tells",
    "said",
    "asked",
    "asks",
    "whom",
    "nobody",
    "somebody",
    "anybody",
    "anew",
    "hears",
    "heard",
)
PAGES = sorted(path for folder in (ROOT, ROOT / "docs") for path in folder.glob("*.md") if path.name != "CHANGELOG.md")
# The outcome Asked of a hook in the CRD; and a page about the engine.
# These numbers may only fall.
ALLOWED = {"docs/crd.md": 2, "docs/server.md": 2}
CODE = (
    *("operator", "gateway", "jobs", "server", "cli", "console", "process", "contracts"),
    *("testkit", "devcluster", "bench", "e2e", "examples", "tests"),
)
WORDS_IN_CODE = 66  # this number may only fall
GLOSSARY_ROWS = 60


def prose(page: str) -> str:
    """A page without its code: output of programs is quoted unchanged."""
    return re.sub(r"`[^`]*`", "", re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL))


def count_words(text: str) -> Counter[str]:
    return Counter(re.findall(rf"\b({'|'.join(WORDS)})\b", text.lower()))


def glossary() -> list[list[str]]:
    """The cells of each row."""
    part = (ROOT / "CONTRIBUTING.md").read_text().partition("## Glossary")[2]
    rows = [line for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1:]]


@pytest.mark.parametrize("path", PAGES, ids=[path.stem for path in PAGES])
def test_pages_avoid_words_of_a_private_dialect(path: Path) -> None:
    words = count_words(prose(path.read_text()))
    assert words.total() <= ALLOWED.get(str(path.relative_to(ROOT)), 0), words


def test_code_and_tests_avoid_words_of_a_private_dialect() -> None:
    """What is left: the hook outcome `asked`, messages that are quoted, and verses that models were trained on."""
    own = Path(__file__)
    paths = [path for folder in CODE for path in (ROOT / folder).rglob("*.py") if path != own]
    words = Counter({str(path.relative_to(ROOT)): count_words(path.read_text()).total() for path in paths})
    assert words.total() <= WORDS_IN_CODE, words.most_common(10)


def test_words_in_code_do_not_count() -> None:
    assert count_words(prose("It is `told`.\n```\nasked\n```\nNobody asks.")) == {"nobody": 1, "asks": 1}


def test_the_glossary_fits_on_a_page() -> None:
    assert 30 < len(glossary()) <= GLOSSARY_ROWS


def test_places_of_the_glossary_exist() -> None:
    places = [re.fullmatch(r"(\w+) `([\w./]+)`", row[3]) for row in glossary()]
    assert all(places), "a place is a package and a path in it"
    assert not [place[0] for place in places if place and not (figures.folder(place[1]) / place[2]).exists()]
