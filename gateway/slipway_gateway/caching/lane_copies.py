"""Copies of kept responses in the compiled lane, which answers requests of the same bytes by them.

Which requests are equal, and what is kept, is decided in this package alone. A copy is put into the lane when Python
answers a request with a kept response, by the bytes of that request, and leaves the lane when that response leaves.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ..limits.budget import MemoryBudget
from ..routing.table import base_revision
from .digests import digest_of
from .entry import FORMATS, Entry, own_id_places, with_new_id
from .request_key import EMBEDDINGS, SHARED, canonical, entry_key, scope_of
from .store import Kept, KeptKeys, MemoryStore

if TYPE_CHECKING:
    from slipway_plane import _native

# Longer responses are Python's: they are not one write.
MAX_BODY_BYTES = 64 << 10
# Of the bytes of a cache, the part that copies may take.
PART = 4
# What a copy takes here and in the lane, beside its bytes, and what each of its keys does.
COPY_BYTES, KEY_BYTES = 2048, 512
PLACE_BYTES = 8  # where the id of a response begins in its body
MAX_COPIES = 65_536  # as in the lane
MAX_KEYS = 64  # of the entries that a copy is made of: embeddings of a request with several inputs
_ZEROS = "0" * 32


class CopiedRequest(NamedTuple):
    """A request that gets a copy, as its server would get it. `scope`: whose entries it gets. `revision`: to which it
    goes; baseline pods run the same as their revision."""

    scope: str
    route: str
    uid: str
    path_qs: str
    headers: Mapping[str, str]
    body: bytes
    revision: str

    @property
    def digest(self) -> bytes:
        """By which the lane finds its copy: what `request_key.canonical` and `entry_key` read of it, and nothing else.
        So requests with one digest have one key."""
        formats = (self.headers.get(name, "") for name in FORMATS)
        about = (self.scope, self.route, self.uid, self.path_qs)
        return digest_of((*about, *formats, self.body, base_revision(self.revision)))


class _Copy(NamedTuple):
    keys: tuple[bytes, ...]
    size_bytes: int
    scope: str
    route: str
    uid: str
    put_s: float


class LaneCopies:
    """The copies of one gateway. They take memory of the budget of requests, with the shares of the cache's owners."""

    def __init__(
        self,
        lane: "_native.Lane",
        store: MemoryStore,
        limit_bytes: int,
        budget: MemoryBudget,
        clock: Callable[[], float],
        serves: Callable[[str, int], bool] = lambda path, size_bytes: True,
    ) -> None:
        """`clock`: of `store` and of the lane. `serves`: whether the lane may serve a path with a body of this size."""
        self._lane, self._store, self._clock, self._serves = lane, store, clock, serves
        self._budget = budget
        self._index = KeptKeys(limit_bytes)
        self._copies: dict[bytes, _Copy] = {}
        self._by_key: dict[bytes, set[bytes]] = {}
        self._account = budget.open("")
        budget.caches(self._account, self._reclaim)
        lane.hold_copies(limit_bytes)
        store.on_left = self._left

    def __len__(self) -> int:
        return len(self._copies)

    @property
    def size_bytes(self) -> int:
        return self._account.held_bytes

    def offer(self, request: CopiedRequest, keys: Sequence[bytes], owner: str, entry: Entry) -> None:
        """A request got a kept response. Those with the same bytes may get it in the lane, as long as all `keys` of it
        are kept. `owner`: in whose share it counts."""
        if not self._serves(request.path_qs, len(request.body)) or not _fits_lane(request, entry):
            return
        kept = [self._store.look(key) for key in keys[: MAX_KEYS + 1]]
        expires = [one[1] for one in kept if one is not None]
        digest = request.digest
        if not 0 < len(keys) <= MAX_KEYS or len(expires) < len(keys) or digest in self._copies:
            return
        while len(self._copies) >= MAX_COPIES and (oldest := self._index.drop_oldest()) is not None:
            self._forget(oldest)
        own_id = own_id_places(entry.body)
        size_bytes = COPY_BYTES + KEY_BYTES * len(keys) + PLACE_BYTES * len(own_id[1]) + entry.size_bytes
        # A copy saves time alone: no entry leaves for it, and no client that does not read.
        if self._budget.used_bytes + size_bytes > self._budget.limit_bytes or self._account.grow(size_bytes):
            return
        gone = self._index.put(digest, Kept(owner, size_bytes, min(expires)))
        if gone is None:
            self._account.shrink(size_bytes)
            return
        self._copies[digest] = _Copy(tuple(keys), size_bytes, request.scope, request.route, request.uid, self._clock())
        for key in keys:
            self._by_key.setdefault(key, set()).add(digest)
        for other in gone:
            self._forget(other)
        # Room for its own bytes may have been made by what it is made of, or by it.
        if digest in self._copies and all(self._store.look(key) is not None for key in keys):
            self._put(digest, entry, own_id, min(expires), size_bytes)
        elif digest in self._copies:
            self._drop(digest)

    def _put(
        self, digest: bytes, entry: Entry, own_id: tuple[int, list[int]], expires_s: float, size_bytes: int
    ) -> None:
        has_room = self._lane.put_copy(
            digest,
            revision=entry.revision,
            headers=list(entry.headers),
            body=entry.body,
            own_id=own_id,
            usage=msgspec.structs.astuple(entry.usage) if entry.usage is not None else None,
            stored_s=entry.stored_s,
            expires_s=expires_s,
            size_bytes=size_bytes,
        )
        if not has_room:
            self._drop(digest)

    def used(self, digests: Sequence[bytes]) -> None:
        """Requests got these copies: they, and the entries that they are made of, are their owners' newest."""
        for digest in digests:
            copy = self._copies.get(digest)
            if copy is not None and self._index.use(digest, self._clock()):
                self._store.use(copy.keys)

    def may_keep(self, path: str, headers: Mapping[str, str], body: bytes) -> bool:
        """Whether a cache may keep the response to a request."""
        return canonical(path, headers, body) is not None

    def differs(self, one: "_native.Recount", path: str, headers: Mapping[str, str], tenant: str) -> bool:
        """Whether a request got another response than Python would give it, as far as that is known still.

        `tenant`: as servers know it.
        """
        assert one.hit is not None
        copy = self._copies.get(one.hit.digest)
        if copy is None or copy.put_s > one.hit.found_s:
            return False  # it has left since then, and there may be one of another response
        if (copy.route, copy.scope) not in ((one.route, SHARED), (one.route, scope_of(tenant, is_shared=False))):
            return True
        found = canonical(path, headers, one.sent)
        digests = (found.items or (found.digest,)) if found is not None else ()
        about = (copy.scope, copy.route, copy.uid, base_revision(one.hit.chosen))
        if tuple(entry_key(*about, digest) for digest in digests) != copy.keys:
            return True
        kept = self._store.look(copy.keys[0])
        if kept is None or path == EMBEDDINGS:
            return False  # its body is made of parts
        return with_new_id(kept[0].body, _ZEROS) != with_new_id(one.response, _ZEROS)

    def _left(self, key: bytes) -> None:
        """An entry is no longer kept: no request may get it."""
        for digest in self._by_key.pop(key, ()):
            self._drop(digest)

    def _drop(self, digest: bytes) -> None:
        self._index.drop(digest)
        self._forget(digest)

    def _forget(self, digest: bytes) -> None:
        """The index has it no longer."""
        self._lane.drop_copy(digest)
        copy = self._copies.pop(digest)
        self._account.shrink(copy.size_bytes)
        for key in copy.keys:
            if (others := self._by_key.get(key)) is not None:
                others.discard(digest)
                if not others:
                    del self._by_key[key]

    def _reclaim(self, wanted_bytes: int) -> int:
        before = self.size_bytes
        while before - self.size_bytes < wanted_bytes and (digest := self._index.drop_oldest()) is not None:
            self._forget(digest)
        return before - self.size_bytes


def _fits_lane(request: CopiedRequest, entry: Entry) -> bool:
    """Whether the lane may answer with a response: it writes ASCII alone, and no limits but those of a tenant here."""
    names = {name.lower() for name, _ in entry.headers}
    sound = all(name.isascii() and value.isascii() and value.isprintable() for name, value in entry.headers)
    limits = any(name.startswith("x-ratelimit-") for name in names)
    return (
        not entry.streams
        and len(entry.body) <= MAX_BODY_BYTES
        and sound
        and not limits
        and "content-type" in names
        and entry.revision.isascii()
        and request.path_qs.isascii()
    )
