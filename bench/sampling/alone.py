"""The sampler alone: 32 rows of a vocabulary, from flat to peaked."""

import time
from typing import Any

import torch

from bench.engine.peers import cores
from bench.sampling.loads import DEFAULT, GREEDY, NUCLEUS, TOP_K
from slipway_server.engine.execution.sampler import Sampler
from slipway_server.engine.request import Request, Sequence
from slipway_server.kernels.c.library import KernelsUnavailable
from slipway_server.kernels.in_torch import TorchKernels
from slipway_server.kernels.native import NativeKernels

ROWS, ROUNDS = 32, 15
VOCABULARIES = (151936, 32000)
SCALES = (0.3, 2.0, 6.0)  # standard deviations of logits


def sampler() -> Sampler:
    try:
        return Sampler(NativeKernels(cores()))
    except KernelsUnavailable:
        return Sampler(TorchKernels(torch.float32, "cpu"))


def rows() -> list[dict[str, Any]]:
    """The least of some rounds, in milliseconds: the sampler computes nothing else, and other work only adds."""
    torch.manual_seed(0)
    found = []
    for vocabulary in VOCABULARIES:
        numbers = torch.randn(ROWS, vocabulary)
        for scale in SCALES:
            row: dict[str, Any] = {"kind": "alone", "vocabulary": vocabulary, "scale": scale}
            for load in (GREEDY, DEFAULT, NUCLEUS, TOP_K):
                sequences = [Sequence(Request("", (1,), load.sampling(seed, ()))) for seed in range(ROWS)]
                row[load.name] = round(min(_ms(sequences, numbers * scale) for _ in range(ROUNDS)), 3)
            found.append(row)
    return found


def _ms(sequences: list[Sequence], logits: torch.Tensor, choose: Sampler | None = None) -> float:
    choose = choose or _SAMPLER
    began_s = time.perf_counter()
    choose.sample(logits, sequences)
    return (time.perf_counter() - began_s) * 1e3


_SAMPLER = sampler()
