"""Chooses the library of the C kernels for this CPU, and loads it."""

import ctypes
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ... import environment
from .build import AMX, INSTRUCTION_SETS, InstructionSet

# "native": these kernels or an error; "torch": never these kernels. A name: this instruction set or an error.
CHOICES = ("auto", "native", "torch", *(each.name for each in INSTRUCTION_SETS))
ABOUT_FLAGS = ("vendor_id", "flags", "Features")  # of /proc/cpuinfo


class KernelsUnavailable(Exception):
    """Why the C kernels cannot be used here: one sentence for a person."""


@dataclass(frozen=True, slots=True)
class Library:
    """The functions for one instruction set. `panel`: outputs in a panel of its packed weights."""

    functions: ctypes.CDLL
    instruction_set: str
    panel: int


def choice() -> str:
    """The value of SLIPWAY_KERNELS, one of CHOICES. Raises KernelsUnavailable for any other value."""
    chosen = environment.kernels()
    if chosen not in CHOICES:
        raise KernelsUnavailable(f"{environment.KERNELS} is {chosen!r}, and can be {', '.join(CHOICES)}")
    return chosen


@cache
def library(threads: int) -> Library:
    """Loads the best library for this CPU, or the one that SLIPWAY_KERNELS names, and starts its threads, once.

    Raises:
        KernelsUnavailable: the setting excludes the C kernels, or they cannot run here.
    """
    chosen = choice()
    if chosen == "torch":
        raise KernelsUnavailable(f"{environment.KERNELS} is torch")
    return load(instruction_set(chosen, platform.machine(), usable_flags()), threads)


def instruction_set(chosen: str, machine: str, flags: set[str]) -> InstructionSet:
    """The instruction set named `chosen`, slow or not; for auto and native the best one for a CPU with `flags`.

    Raises:
        KernelsUnavailable: the machine has no C kernels, or the CPU lacks a flag.
    """
    mine = [each for each in INSTRUCTION_SETS if each.machine == machine]
    if not mine:
        raise KernelsUnavailable(f"the C kernels are for x86-64 and aarch64, not for {machine}")
    if chosen in ("auto", "native"):
        found = next((each for each in mine if each.is_for(flags)), None)
        if found is None:
            raise KernelsUnavailable(f"this CPU lacks {', '.join(sorted(mine[-1].needs - flags))}")
        return found
    named = next((each for each in mine if each.name == chosen), None)
    if named is None:
        raise KernelsUnavailable(f"{environment.KERNELS} is {chosen}, which is not of {machine}")
    if missing := named.needs - flags:
        raise KernelsUnavailable(f"{environment.KERNELS} is {chosen}, and this CPU lacks {', '.join(sorted(missing))}")
    return named


def load(kind: InstructionSet, threads: int, path: Path | None = None) -> Library:
    """Loads a library and starts its threads. Raises KernelsUnavailable."""
    path = path or kind.library
    if not path.is_file():
        raise KernelsUnavailable(f"the C kernels for {kind.name} are not built: run slipway_server/kernels/c/build.py")
    try:
        functions = ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelsUnavailable(f"the C kernels do not load: {error}") from None
    if functions.slipway_start(threads) < threads:
        raise KernelsUnavailable("no threads could be started for the C kernels")
    return Library(functions, kind.name, functions.slipway_panel())


def usable_flags() -> set[str]:
    """As `cpu_flags`, without AMX if Linux does not let this process use it."""
    flags = cpu_flags()
    return flags - {AMX} if AMX in flags and not _amx_permitted() else flags


def _amx_permitted() -> bool:
    """Requests the registers of AMX for all threads of this process; False if Linux refuses.

    Linux saves these registers only for processes that have requested them.
    """
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0)


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> set[str]:
    """What /proc/cpuinfo says of the first CPU; empty if it is not readable.

    On x86-64 its `flags` and its `vendor_id`, such as GenuineIntel, on aarch64 its `Features`.
    """
    try:
        first, *_ = cpuinfo.read_text().split("\n\n")
    except OSError:
        return set()
    lines = (line.partition(":") for line in first.splitlines())
    return {word for name, _, words in lines if name.strip() in ABOUT_FLAGS for word in words.split()}
