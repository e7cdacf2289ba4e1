"""Requests of the least urgent priority compute while nothing else does, and in few of the steps that others have.

Each sequence makes a step longer for all that are in it: a class that only waits behind others would still slow them.
"""

from collections.abc import Collection
from dataclasses import dataclass

from ..request import Sequence

PRIORITY = 1000  # the least urgent that a client may have: gateways give it to lines of batches
# Of the steps that other requests have, one in so many: a line beside a load that never ends goes on too.
EVERY = 8


def foreground(running: Collection[Sequence]) -> list[Sequence]:
    """Those that are not in the background; all where there are no others."""
    return [sequence for sequence in running if sequence.request.priority != PRIORITY] or list(running)


def num_decodes(running: Collection[Sequence]) -> int:
    """Answers that a step should be short for. A prompt of the background alone counts as one: a request that arrives
    waits for the end of its step."""
    urgent = foreground(running)
    decoding = sum(sequence.decoding for sequence in urgent)
    return decoding or int(any(sequence.request.priority == PRIORITY for sequence in urgent))


@dataclass(slots=True)
class BackgroundTurns:
    _steps: int = 0  # without the background, since it was in one

    def members(self, running: Collection[Sequence]) -> list[Sequence]:
        """Which sequences the next step may have."""
        urgent = foreground(running)
        if len(urgent) == len(running):
            return urgent
        self._steps += 1
        if self._steps < EVERY:
            return urgent
        self._steps = 0
        return list(running)
