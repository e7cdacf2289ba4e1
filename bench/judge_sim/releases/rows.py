"""Canaries of simulated releases, and the requests that come meanwhile: the same ones for each rule."""

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slipway_operator.judging.margins import ramp
from slipway_operator.model.deployment.strategy import Ramp

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Rng = np.random.Generator

LOOK_S, MINUTE_S = int(ramp.LOOK_S), 60
BAD = 0.005  # rate of bad responses of stable, and of canary besides `copies` and `clients`
SHADOW_S = 3600  # an hour, so that it is seen how long shadows take at few requests; the default is half of it
RAMP_S, BAKE_S = Ramp("llm-release").max_duration_s, Ramp("llm-release").bake_s
LENGTH_S = SHADOW_S + RAMP_S + BAKE_S
RATES = (1.0, 5.0, 20.0)  # requests a second
BATCH = 500


@dataclass(frozen=True)
class Row:
    """A kind of canary: extra bad responses for each request, to copies and to clients."""

    name: str
    copies: float = 0.0
    clients: float = 0.0

    @property
    def healthy(self) -> bool:
        return not self.clients

    @property
    def shown(self) -> bool:
        """Whether copies see what clients see."""
        return self.copies == self.clients


DEAD, MARGIN = 1 - BAD, 0.01
HEALTHY = Row("healthy")
AT_MARGIN, TWICE = Row("+10 per 1,000, the margin", MARGIN, MARGIN), Row("+20 per 1,000", 2 * MARGIN, 2 * MARGIN)
LIVE_DEAD = Row("dead for clients only", clients=DEAD)
ROWS = (
    HEALTHY,
    AT_MARGIN,
    TWICE,
    Row("+95 per 1,000", 0.095, 0.095),
    Row("dead", DEAD, DEAD),
    LIVE_DEAD,
    Row("+100 per 1,000, clients only", clients=0.1),
    Row("+20 per 1,000, clients only", clients=0.02),
)


def requests(rate: float, first: int, runs: int, seed: int) -> Ints:
    """Requests before each look of runs from `first` on, (runs, looks): of a rate, whatever canary and rule."""
    return generator(f"requests {rate:g}", first, seed).poisson(rate * LOOK_S, (runs, LENGTH_S // LOOK_S))


def generator(name: str, first: int, seed: int) -> Rng:
    """Of its own for each purpose and batch, so no result depends on what else is simulated."""
    return np.random.default_rng([seed, zlib.crc32(name.encode()), first])


def bad_of(rng: Rng, served: Ints, extra: float, stable: float = BAD) -> tuple[Ints, Ints]:
    """Bad responses among these of canary: all, and those that stable, with its own rate, would not have given."""
    usual = rng.binomial(served, stable)
    more = rng.binomial(served - usual, extra / (1 - stable))
    return usual + more, more
