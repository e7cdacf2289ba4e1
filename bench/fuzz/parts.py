"""The parts that are fuzzed in this process: what each draws, what must hold, and the bars of a report."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from testkit.report import Bar, Json

from . import folders, operator, reports, routes
from .tally import Tally, count


@dataclass(frozen=True, slots=True)
class Part:
    """`bar`: what is counted when `check` fails; parts with the same bar add up."""

    name: str
    bar: str
    strategy: Callable[[], st.SearchStrategy[Any]]
    check: Callable[[Any, Tally], None]


PARSER, TABLE, WRITES = (
    "exceptions of the operator's parser",
    "exceptions of the route table",
    "writes outside of the folder",
)
FETCHER = "other ends of the fetcher than its own errors"
CHARGES = "responses whose charge the ledger has not, or too much of it"
PARTS = (
    Part("specs", PARSER, operator.specs, operator.check_spec),
    Part("statuses", PARSER, operator.statuses, operator.check_status),
    Part("templates", PARSER, operator.templates, operator.check_template),
    Part("routes files", TABLE, routes.files, routes.check_file),
    Part("routes of objects", TABLE, routes.objects, routes.check_objects),
    Part("archives", FETCHER, folders.archives, folders.check_archive),
    Part("folders", FETCHER, folders.folders, folders.check_folder),
    Part("reports of engines", CHARGES, reports.responses, reports.check_response),
)
FIELDS = {"specs": ("modeldeployments", "spec"), "statuses": ("modeldeployments", "status")}
FIELDS["templates"] = ("analysistemplates", "spec")


def run(part: Part, seed: int, *, examples: int = 0, seconds: float = 0.0) -> Tally:
    """So many examples of one part, or for so long. What is drawn is odd: warnings about it would fill the output."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        return count(part.strategy(), part.check, seed, examples=examples, seconds=seconds)
    finally:
        logging.disable(before)


def fields_of(part: Part) -> int:
    """How many the CRD has; 0 for what no CRD describes."""
    found = FIELDS.get(part.name)
    return len(operator.crd(found[0]).fields(found[1])) if found else 0


def fuzz(seconds: float, seed: int) -> tuple[list[Json], list[Bar]]:
    """All parts, one after the other: rows and bars of a report."""
    rows, failures = [], dict.fromkeys((PARSER, TABLE, FETCHER, WRITES, CHARGES), 0)
    for part in PARTS:
        tally = run(part, seed, seconds=seconds / len(PARTS))
        outside = sum(folders.OUTSIDE in wrong for wrong in tally.wrong)
        failures[part.bar] += tally.failures - outside
        failures[WRITES] += outside
        rows.append(
            {
                "part": part.name,
                "examples": tally.examples,
                "endings": tally.endings,
                "fields_covered": len(tally.fields),
                "fields": fields_of(part),
                "wrong": tally.wrong,
            }
        )
    return rows, [Bar(name, number, "0", number == 0) for name, number in failures.items()]
