"""Promises about tenants and namespaces have tests, and name the engines that keep them: docs/promises.yaml."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from testkit import ROOT

DOCS = ROOT / "docs"
LISTED: dict[str, Any] = yaml.safe_load((DOCS / "promises.yaml").read_text())
PAGES = ("tenants.md", "gateway.md", "threat-model.in.md")
SURE = re.compile(r"\b(never|no one|no other|cannot|must not|not share|none)\b", re.IGNORECASE)
ABOUT = re.compile(r"\b(tenants?|clients?|namespaces?|keys?|others?|user)\b", re.IGNORECASE)
OTHER_ENGINES = "engines.md#what-another-engine-cannot-do"

pytestmark = pytest.mark.finding("F13")


def paragraphs(page: str) -> Iterator[str]:
    """Paragraphs, items and rows, each as one line; blocks of code are left out."""
    text = re.sub(r"```.*?```", "", (DOCS / page).read_text(), flags=re.DOTALL)
    for part in re.split(r"\n\s*\n|\n(?=- |\| |\d\. )", text):
        yield " ".join(part.split())


def sentences(page: str) -> Iterator[str]:
    for paragraph in paragraphs(page):
        words = re.sub(r"\]\([^)]*\)", "]", paragraph)  # without the targets of links
        yield from re.split(r"(?<=[.:;|])\s+", words)


def promised(page: str) -> list[str]:
    return [promise["says"] for promise in LISTED["promises"] if promise["page"] == page]


@pytest.mark.parametrize("promise", LISTED["promises"], ids=lambda promise: promise["says"][:40])
def test_a_promise_stands_on_its_page_and_has_tests(promise: dict[str, Any]) -> None:
    text = "\n".join(path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py")))
    known = set(re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE))
    assert any(promise["says"] in paragraph for paragraph in paragraphs(promise["page"]))
    assert promise["tests"] and set(promise["tests"]) <= known


def test_a_promise_that_only_some_engines_keep_says_so() -> None:
    """F13: the pages promised for all engines what one of them did."""
    for promise in LISTED["promises"]:
        for engine in promise.get("engines", ()):
            (paragraph,) = [text for text in paragraphs(promise["page"]) if promise["says"] in text]
            assert engine in paragraph, f"{promise['page']} does not name {engine}: {promise['says']}"
            assert OTHER_ENGINES in paragraph or "other engines" in paragraph.lower(), promise["says"]


@pytest.mark.parametrize("page", PAGES)
def test_no_sentence_that_sounds_like_a_promise_is_missing(page: str) -> None:
    listed = [*promised(page), *LISTED["no_promises"]]
    sure = [text for text in sentences(page) if SURE.search(text) and ABOUT.search(text)]
    assert sure
    assert not [text for text in sure if not any(part in text or text.rstrip(".:;") in part for part in listed)]


def test_what_is_listed_as_no_promise_is_on_a_page() -> None:
    text = "\n".join(sentence for page in PAGES for sentence in sentences(page))
    assert not [part for part in LISTED["no_promises"] if part not in text]
