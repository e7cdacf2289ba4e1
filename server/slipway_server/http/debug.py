"""`GET /debug/profile` on the probe port, for a person at a terminal: plain text, and only where it was switched on."""

import asyncio
from urllib.parse import parse_qsl

from slipway_process.serving.probes import Profiles
from slipway_process.serving.restarts import EngineError

from ..engine.client import EngineClient, ProfileBusy
from ..engine.messages import Profile

MAX_STEPS, MAX_SECONDS = 200, 60.0
ANSWER_S = 30.0  # to write the table, beyond the profile's own time
KINDS = {"python": False, "torch": True}


def profiles(engine: EngineClient, loop: asyncio.AbstractEventLoop) -> Profiles:
    """A function that answers a query string with status and text. It blocks: call it outside of the loop's thread."""

    def answer(query: str) -> tuple[int, str]:
        try:
            request = parse_query(query)
        except ValueError as error:
            return 400, f"{error}\n"
        table = asyncio.run_coroutine_threadsafe(engine.profile(request), loop)
        try:
            return 200, table.result(request.seconds + ANSWER_S)
        except (EngineError, TimeoutError) as error:
            return 503, f"{str(error) or 'The engine does not answer.'}\n"
        except ProfileBusy as error:
            return 409, f"{error}\n"
        finally:
            table.cancel()

    return answer


def parse_query(query: str) -> Profile:
    """The profile that a query string requests. Raises ValueError with a sentence for the user."""
    given = dict(parse_qsl(query, keep_blank_values=True))
    steps, seconds, kind = given.pop("steps", "20"), given.pop("seconds", "10"), given.pop("kind", "python")
    if given:
        raise ValueError(f"There is no {next(iter(given))!r} here: steps, seconds and kind.")
    if not steps.isdecimal() or not 1 <= int(steps) <= MAX_STEPS:
        raise ValueError(f"steps is a whole number from 1 to {MAX_STEPS}.")
    if not seconds.isdecimal() or not 1 <= int(seconds) <= MAX_SECONDS:
        raise ValueError(f"seconds is a whole number from 1 to {MAX_SECONDS:.0f}.")
    if kind not in KINDS:
        raise ValueError(f"kind is one of {', '.join(KINDS)}.")
    return Profile(int(steps), float(seconds), KINDS[kind])
