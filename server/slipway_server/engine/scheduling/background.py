"""Background requests, those of the least urgent priority, run when no others do, else in only one of EVERY steps.

Each sequence makes a step longer for all sequences in it: a low priority in the queue alone would not keep background
requests from slowing the others.
"""

from collections.abc import Collection
from dataclasses import dataclass

from ..request import Sequence

PRIORITY = 1000  # the least urgent one that a client may set; gateways give it to the requests of batch files
# The background joins one in this many steps of other requests, so that it progresses beside an endless load.
EVERY = 8


def foreground(running: Collection[Sequence]) -> list[Sequence]:
    """The sequences that are not in the background; all of them when only background ones run."""
    return [sequence for sequence in running if sequence.request.priority != PRIORITY] or list(running)


def num_decodes(running: Collection[Sequence]) -> int:
    """How many answers a step should be short for: the decoding foreground sequences.

    1 when only background prompts run, so that a request that arrives waits less for the end of their step.
    """
    urgent = foreground(running)
    decoding = sum(sequence.decoding for sequence in urgent)
    return decoding or int(any(sequence.request.priority == PRIORITY for sequence in urgent))


@dataclass(slots=True)
class BackgroundTurns:
    _steps: int = 0  # foreground steps since the last one that the background joined

    def members(self, running: Collection[Sequence]) -> list[Sequence]:
        """The sequences that the next step may compute. Each call counts as one step."""
        urgent = foreground(running)
        if len(urgent) == len(running):
            return urgent
        self._steps += 1
        if self._steps < EVERY:
            return urgent
        self._steps = 0
        return list(running)
