"""Counters of gateway processes, of which the status keeps how much is counted already.

So a restarted operator counts nothing twice, and a restarted gateway, whose counters begin at zero, is another process.
What a gateway counted after it was last read is lost when it is killed.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence

MOST_PROCESSES, MOST_NOTED = 64, 96  # that are counted; that are remembered, with those that are gone

Tally = tuple[int, ...]
Counts = Mapping[str, Tally]  # by the name of a counter


def fitting(reported: Mapping[str, Counts], before: Mapping[str, Counts]) -> dict[str, Counts]:
    """Processes that are counted: those that were counted before come first. What is not noted would count twice.

    One whose name would not be found again in its line is not counted either: it would count again in each reconcile.
    """
    named = (process for process in reported if process and " " not in process)
    ranked = sorted(named, key=lambda process: (process not in before, process))
    return {process: reported[process] for process in sorted(ranked[:MOST_PROCESSES])}


def growth(now: Counts, before: Counts, names: Container[str]) -> Iterator[tuple[str, Tally]]:
    """How much counters of a process grew. Where a number is below the former one, the counter began again."""
    for name, tally in now.items():
        if name not in names:
            continue
        then = before.get(name, ())
        kept = then if len(then) == len(tally) else (0,) * len(tally)
        began_again = any(one < former for one, former in zip(tally, kept, strict=True))
        yield name, tally if began_again else tuple(one - former for one, former in zip(tally, kept, strict=True))


def noted(present: Mapping[str, Counts], before: Mapping[str, Counts], names: Sequence[str]) -> tuple[str, ...]:
    """Lines for the status: what of each process is counted, of these counters. The last ones are present.

    A process that does not answer, or has no table yet, keeps what is noted of it.
    """
    gone = [(process, counts) for process, counts in before.items() if process not in present]
    remembered = gone[-(MOST_NOTED - len(present)) :]
    kept = ((process, _kept(counts, before.get(process, {}), names)) for process, counts in present.items())
    return tuple(line(process, counts) for process, counts in (*remembered, *kept))


def _kept(now: Counts, before: Counts, names: Sequence[str]) -> Counts:
    return {name: counts for name in names if (counts := now.get(name, before.get(name))) is not None}


def line(name: str, counts: Counts) -> str:
    """NAME COUNTER=NUMBER:NUMBER..., in the order of the counters."""
    return " ".join((name, *(f"{key}={':'.join(map(str, tally))}" for key, tally in sorted(counts.items()))))


def read(written: Sequence[str], sound: Callable[[dict[str, Tally]], Counts] = dict) -> dict[str, Counts]:
    """The lines of `noted` by name; what is malformed is left out, and so is what is not `sound`."""
    found = (_read(text) for text in written)
    return {name: sound(counts) for name, counts in found if name}


def _read(text: str) -> tuple[str, dict[str, Tally]]:
    name, *parts = text.split(" ")
    reported: dict[str, Tally] = {}
    for part in parts:
        key, _, numbers = part.partition("=")
        listed = numbers.split(":")
        if all(number.isascii() and number.isdigit() and len(number) <= 16 for number in listed):
            reported[key] = tuple(map(int, listed))
    return name, reported
