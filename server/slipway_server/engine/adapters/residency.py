"""Which adapters are loaded, in which slots, and which one has to go for another. Pure bookkeeping.

An adapter is pinned while requests use it. Of the others the least recently used one goes first.
"""

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(slots=True)
class Resident:
    slot: int
    size_bytes: int
    pins: int = 0
    closing: bool = False  # new requests for it wait: it goes when its last one ends


class Residency:
    def __init__(self, slots: int, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._free_slots = list(range(slots - 1, -1, -1))
        self._residents: OrderedDict[str, Resident] = OrderedDict()  # the least recently used one first

    @property
    def used_bytes(self) -> int:
        return sum(resident.size_bytes for resident in self._residents.values())

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of each adapter that is loaded."""
        return {digest: resident.size_bytes for digest, resident in self._residents.items()}

    def slot_of(self, digest: str) -> int:
        """The slot of a loaded adapter. Raises KeyError."""
        return self._residents[digest].slot

    def has(self, digest: str) -> bool:
        return digest in self._residents

    def pin(self, digest: str) -> bool:
        """Keeps an adapter for a request. False where it is not loaded, or is to go."""
        resident = self._residents.get(digest)
        if resident is None or resident.closing:
            return False
        resident.pins += 1
        self._residents.move_to_end(digest)
        return True

    def unpin(self, digest: str) -> None:
        self._residents[digest].pins -= 1

    def fits(self, size_bytes: int) -> bool:
        """Whether an adapter of this size could ever be loaded."""
        return size_bytes <= self._size_bytes and bool(self._residents or self._free_slots)

    def make_room(self, size_bytes: int) -> list[str] | None:
        """The adapters to remove so that one of this size fits; None while requests use too many of them.

        Those that are then too many are closed to new requests: however many of these come, room is made.
        """
        for pinned_too in (False, True):
            victims = self._victims(size_bytes, pinned_too=pinned_too)
            if victims is not None and not pinned_too:
                return victims
            for digest in victims or ():
                self._residents[digest].closing = True
        return None

    def _victims(self, size_bytes: int, *, pinned_too: bool) -> list[str] | None:
        """The least recently used adapters that make room together; those that are closed come first."""
        left, victims, slots = self.used_bytes, [], len(self._free_slots)
        order = sorted(self._residents.items(), key=lambda item: not item[1].closing)
        for digest, resident in [("", None), *order]:
            if resident is not None and (pinned_too or not resident.pins):
                victims.append(digest)
                left, slots = left - resident.size_bytes, slots + 1
            if slots and left + size_bytes <= self._size_bytes:
                return victims
        return None

    def add(self, digest: str, size_bytes: int) -> int:
        """Adds an adapter for which there is room, and returns its slot. Others that were to go stay."""
        slot = self._free_slots.pop()
        self._residents[digest] = Resident(slot, size_bytes)
        for resident in self._residents.values():
            resident.closing = False
        return slot

    def remove(self, digest: str) -> int:
        """Removes an adapter that no request uses, and returns its slot."""
        resident = self._residents.pop(digest)
        assert not resident.pins, "requests use the adapter"
        self._free_slots.append(resident.slot)
        return resident.slot

    def in_use(self, digest: str) -> bool:
        return digest in self._residents and self._residents[digest].pins > 0

    def check(self, slots: int) -> None:
        """Raises AssertionError when the bookkeeping is inconsistent."""
        taken = [resident.slot for resident in self._residents.values()]
        assert sorted(taken + self._free_slots) == list(range(slots)), "a slot is lost or used twice"
        assert self.used_bytes <= self._size_bytes, "there are more bytes than may be"
        assert all(resident.pins >= 0 for resident in self._residents.values()), "an adapter was unpinned twice"
