"""What is known of a ModelPool: its pods, and what each of them reports of the pool's entries."""

from collections.abc import Mapping
from dataclasses import dataclass

# Reasons in the conditions of ModelDeployments that are members of a pool.
POOL_NOT_FOUND, POOL_NOT_READY = "PoolNotFound", "PoolNotReady"
MODEL_FAILED, DATA_ERROR = "Error", 65  # reason and exit code of a server that cannot load its model
MAX_ENTRIES = 256  # of the file of entries that a pool's server reads
READY, UNAVAILABLE = "READY", "UNAVAILABLE"  # states in the server's model repository index
# Reasons that are no trouble: the entry is not loaded now, or its files are being downloaded.
NOT_LOADED = ("", "unloaded")
WAITING = (*NOT_LOADED, "The files of the model are not here yet: they are being downloaded.")


@dataclass(frozen=True, slots=True)
class EntryState:
    """One entry in one pod."""

    state: str  # from the server's model repository index
    reason: str = ""
    was_loaded: bool = False  # it is in memory, or was at some time since both operator and pod started

    @property
    def in_memory(self) -> bool:
        """Whether the entry is loaded in the pod's memory now."""
        return self.state == READY

    @property
    def hindrance(self) -> str:
        """Why a request for the entry would fail now; empty also if the server would first load the entry."""
        return self.reason if self.state == UNAVAILABLE and self.reason not in NOT_LOADED else ""

    @property
    def trouble(self) -> str:
        """Why the entry cannot be loaded; empty if nothing is wrong."""
        return self.reason if self.state == UNAVAILABLE and self.reason not in WAITING else ""


@dataclass(frozen=True, slots=True)
class PoolPod:
    """A ready pod of a pool, with its entries by revision; `entries` None: it did not answer."""

    name: str
    entries: Mapping[str, EntryState] | None = None
    loaded: int = 0
    memory_bytes: int = 0
    memory_limit_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PoolView:
    """A ModelPool now. `uid`: of the StatefulSet that controls the pods. `pods`: those that are ready."""

    uid: str
    present: int = 0  # pods that exist
    pods: tuple[PoolPod, ...] = ()
    problem: str = ""  # why there are fewer pods than wanted, or none; else empty


PoolViews = Mapping[tuple[str, str], PoolView]  # by namespace and name
