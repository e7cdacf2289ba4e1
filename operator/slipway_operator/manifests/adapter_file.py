"""The file of a ModelDeployment's adapters: one entry for each revision that its pods are to hold."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from slipway_contracts.adapters import MAX_ADAPTERS, AdapterEntry, AdapterFile
from slipway_contracts.fetch_source import FetchSource
from slipway_operator.model.adapter_views import MAX_ROLLOUTS, MAX_SERVED, AdapterRevision


@dataclass(frozen=True, slots=True)
class AdapterSelection:
    """What the file lists, and which ModelAdapters it leaves out."""

    listed: tuple[AdapterRevision, ...] = ()
    beyond: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()  # they are listed, and the version that they roll out is not


def chosen(revisions: Iterable[AdapterRevision]) -> AdapterSelection:
    """Return the revisions that become entries.

    They are those of the MAX_SERVED oldest ModelAdapters; of rollouts the MAX_ROLLOUTS that began first take part.
    """
    known = sorted(revisions, key=lambda revision: (revision.created, revision.adapter, revision.snapshot.ordinal))
    names = tuple(dict.fromkeys(revision.adapter for revision in known))
    served, beyond = set(names[:MAX_SERVED]), frozenset(names[MAX_SERVED:])
    rolling = sorted(
        (revision.begun, revision.adapter) for revision in known if revision.begun and revision.adapter in served
    )
    waiting = frozenset(adapter for _, adapter in rolling[MAX_ROLLOUTS:])
    listed: dict[tuple[str, str], AdapterRevision] = {}
    for revision in known:
        if revision.adapter in served and not (revision.begun and revision.adapter in waiting):
            # Two ModelAdapters with the same name and model are the same entry.
            listed.setdefault((revision.snapshot.inputs.model.name, revision.snapshot.revision), revision)
    return AdapterSelection(_bounded(listed.values()), beyond, waiting)


def _bounded(listed: Collection[AdapterRevision]) -> tuple[AdapterRevision, ...]:
    """As many as loaders read: a longer file would count for no adapter.

    Of former revisions, which only their last requests need, those of ModelAdapters with many are left out first.
    """
    if len(listed) <= MAX_ADAPTERS:
        return tuple(listed)
    former, ranks = Counter[str](), dict[int, int]()
    for number, revision in sorted(enumerate(listed), key=lambda entry: -entry[1].snapshot.ordinal):
        ranks[number] = 0 if revision.stable or revision.begun else former[revision.adapter]
        former[revision.adapter] += 1
    kept = set(sorted(ranks, key=lambda number: (ranks[number], number))[:MAX_ADAPTERS])
    return tuple(revision for number, revision in enumerate(listed) if number in kept)


def adapter_file(listed: Sequence[AdapterRevision]) -> str:
    """Return the file as JSON, as slipway-adapter-loader reads it."""
    entries = sorted((_entry(revision) for revision in listed), key=lambda entry: (entry.name, entry.revision))
    return msgspec.json.encode(AdapterFile(tuple(entries))).decode()


def _entry(revision: AdapterRevision) -> AdapterEntry:
    snapshot, model = revision.snapshot, revision.snapshot.inputs.model
    store = model.object_store
    source = FetchSource(
        uri=model.uri,
        revision=model.revision or "",
        endpoint=store.endpoint or "",
        region=store.region or "",
        account=store.account or "",
    )
    digest = snapshot.weights.digest if snapshot.weights else ""
    return AdapterEntry(name=model.name, revision=snapshot.revision, source=source, digest=digest)
