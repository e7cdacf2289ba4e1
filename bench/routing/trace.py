"""Agents and what they say: applications with a long system prompt, sessions of several turns (pure).

The form is that of agents' traces as routers publish them: few applications, of which some have most sessions; each
turn repeats the whole conversation and adds a little. All of it follows from a seed.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

BYTES_PER_TOKEN = 4
_LONGEST = 3  # times the mean: no prompt exceeds its model's context


@dataclass(frozen=True, slots=True)
class TraceShape:
    """Numbers of tokens are means of exponential lengths, except those of system prompts. `zipf`: of applications."""

    applications: int = 20
    sessions: int = 200
    turns: int = 6
    system_tokens: tuple[int, int] = (2000, 6000)
    turn_tokens: int = 400  # that a turn adds before its answer
    output_tokens: int = 150
    think_s: float = 3.0  # between an answer and the next turn: a tool, or a human
    zipf: float = 1.0
    shares_prefixes: bool = True  # False: every session has a system prompt of its own, and one turn


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. `added`: the end of its prompt, which is new. `answer`: which the next turn repeats."""

    added: bytes
    answer: bytes
    output_tokens: int
    think_s: float  # after the answer


@dataclass(frozen=True, slots=True)
class Session:
    """The requests of one agent, each after the answer to the one before. `system`: how each of its prompts begins."""

    name: str
    system: bytes
    turns: tuple[Turn, ...]

    def text(self, number: int) -> bytes:
        """The whole prompt of a turn."""
        before = (part for turn in self.turns[:number] for part in (turn.added, turn.answer))
        return b"".join((self.system, *before, self.turns[number].added))


Writer = Callable[[random.Random, int], bytes]


def random_bytes(draw: random.Random, tokens: int) -> bytes:
    """A text for simulations: no two are alike."""
    return draw.randbytes(BYTES_PER_TOKEN * tokens)


def sessions(shape: TraceShape, seed: int, write: Writer = random_bytes) -> list[Session]:
    """The sessions of a trace, in the order in which they begin. `write` makes a text of so many tokens."""
    draw = random.Random(seed)
    systems = [write(draw, draw.randint(*shape.system_tokens)) for _ in range(shape.applications)]
    weights = [1 / (rank + 1) ** shape.zipf for rank in range(shape.applications)]
    drawn = []
    for number in range(shape.sessions):
        if shape.shares_prefixes:
            system, turns = draw.choices(systems, weights)[0], shape.turns
        else:
            system, turns = write(draw, draw.randint(*shape.system_tokens)), 1
        drawn.append(Session(f"session-{number}", system, _turns(shape, draw, write, turns)))
    return drawn


def _turns(shape: TraceShape, draw: random.Random, write: Writer, count: int) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    for _ in range(count):
        added, output = write(draw, _length(draw, shape.turn_tokens)), _length(draw, shape.output_tokens)
        turns.append(Turn(added, write(draw, output), output, draw.expovariate(1 / shape.think_s)))
    return tuple(turns)


def _length(draw: random.Random, mean: int) -> int:
    return min(1 + round(draw.expovariate(1 / mean)), _LONGEST * mean)


def tokens(text: bytes) -> int:
    """Of a text of `random_bytes`."""
    return len(text) // BYTES_PER_TOKEN
