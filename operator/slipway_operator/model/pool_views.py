"""What is known of a ModelPool: its pods, and what each of them reports of the pool's entries."""

from collections.abc import Mapping
from dataclasses import dataclass

# Reasons of members' conditions.
POOL_NOT_FOUND, POOL_NOT_READY = "PoolNotFound", "PoolNotReady"
MODEL_FAILED, DATA_ERROR = "Error", 65  # reason and exit code of a server that cannot load its model
MAX_ENTRIES = 256  # of the server's file of a pool
READY, UNAVAILABLE = "READY", "UNAVAILABLE"  # states of the server's index
# Reasons of entries that are no trouble: not loaded yet or any more, and files on their way.
NOT_LOADED = ("", "unloaded")
WAITING = (*NOT_LOADED, "The files of the model are not here yet: they are being downloaded.")


@dataclass(frozen=True, slots=True)
class EntryState:
    """One entry in one pod."""

    state: str  # of the server's index
    reason: str = ""
    was_loaded: bool = False  # it is in memory, or was since the operator and the pod run

    @property
    def in_memory(self) -> bool:
        """Whether it is there now."""
        return self.state == READY

    @property
    def hindrance(self) -> str:
        """Why a request for it would not be served now; empty also where it would only be loaded first."""
        return self.reason if self.state == UNAVAILABLE and self.reason not in NOT_LOADED else ""

    @property
    def trouble(self) -> str:
        """Why it cannot be loaded; empty where nothing is wrong."""
        return self.reason if self.state == UNAVAILABLE and self.reason not in WAITING else ""


@dataclass(frozen=True, slots=True)
class PoolPod:
    """A pod that takes requests, and its entries by revision; None where it does not answer."""

    name: str
    entries: Mapping[str, EntryState] | None = None
    loaded: int = 0
    memory_bytes: int = 0
    memory_limit_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PoolView:
    """`uid`: of the StatefulSet that controls the pods. `pods`: those that are ready."""

    uid: str
    present: int = 0  # pods that exist
    pods: tuple[PoolPod, ...] = ()
    problem: str = ""  # why there are no pods, or fewer


PoolViews = Mapping[tuple[str, str], PoolView]  # by namespace and name
