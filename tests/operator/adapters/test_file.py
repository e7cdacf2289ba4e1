"""The file of adapters: what it lists, its bounds, and that the loader's types read it."""

from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from slipway_contracts.adapters import MAX_ADAPTERS, MAX_FILE_BYTES, AdapterFile
from slipway_operator.manifests.adapter_file import adapter_file, chosen
from slipway_operator.model.adapter_views import MAX_ROLLOUTS, MAX_SERVED, AdapterRevision
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.cluster.weights import Weights
from slipway_operator.model.inputs.pod_inputs import Model, ObjectStore, PodInputs

DIGEST = "sha256:" + "0a" * 32


def revision(number: int, which: str = "stable", begun: str = "") -> AdapterRevision:
    model = Model(f"s3://adapters/{number}/{which}", f"a{number}", object_store=ObjectStore("http://store:9000"))
    name = f"r{number}{which}"[:10].ljust(10, "x")
    record = Snapshot(name, 1 if which == "stable" else 2, PodInputs(model, base="chat"), "image", 60, 3)
    created = f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"
    return AdapterRevision(f"a{number}.adapter", record, created, which == "stable", begun)


def test_a_file_is_what_the_loader_reads() -> None:
    record = Snapshot(
        "bbbbbbbbbb", 1, PodInputs(Model("hf://org/a", "Support", "main"), base="chat"), "i", 60, 3, Weights(DIGEST)
    )
    text = adapter_file([AdapterRevision("support.adapter", record), revision(3)])
    file = msgspec.json.decode(text, type=AdapterFile)
    assert [(entry.name, entry.revision, entry.digest) for entry in file.adapters] == [
        ("Support", "bbbbbbbbbb", DIGEST),
        ("a3", "r3stablexx", ""),
    ]
    assert (file.adapters[0].source.uri, file.adapters[0].source.revision) == ("hf://org/a", "main")
    assert file.adapters[1].source.endpoint == "http://store:9000"


@given(st.integers(0, 300), st.integers(0, 40), st.randoms())
def test_the_oldest_are_served_and_of_rollouts_those_that_began_first(count: int, rolling: int, chance) -> None:
    known = [revision(number) for number in range(count)]
    rolling = min(rolling, count)
    known += [revision(number, "new", f"2026-02-01T00:00:{number:02}Z") for number in range(rolling)]
    chance.shuffle(known)
    found = chosen(known)
    assert found.beyond == {f"a{number}.adapter" for number in range(MAX_SERVED, count)}
    assert found.waiting == {f"a{number}.adapter" for number in range(MAX_ROLLOUTS, rolling)}
    stable = [item.adapter for item in found.listed if item.stable]
    assert len(stable) == len({*stable}) == min(count, MAX_SERVED), "one that waits is served all the same"
    assert len(found.listed) == len(stable) + min(rolling, MAX_ROLLOUTS)
    assert len(adapter_file(found.listed)) < MAX_FILE_BYTES


def test_two_adapters_of_the_same_name_and_files_are_one_entry() -> None:
    first, second = revision(1), revision(1)
    assert len(chosen([first, second]).listed) == 1


def test_one_adapter_with_very_many_former_versions_takes_no_others_entries() -> None:
    many = [replace(revision(0), snapshot=replace(revision(0).snapshot, revision=f"x{n}", ordinal=n), stable=False)
            for n in range(2, 700)]  # fmt: skip
    stable = [revision(number) for number in range(MAX_SERVED)]
    former = [revision(number, "former") for number in range(100, 110)]
    found = chosen([*many, *stable, *former]).listed
    assert len(msgspec.json.decode(adapter_file(found), type=AdapterFile).adapters) == MAX_ADAPTERS
    assert all(item in found for item in (*stable, *former))
    assert max(many, key=lambda item: item.snapshot.ordinal) in found


def test_the_order_of_objects_changes_no_byte() -> None:
    assert adapter_file([revision(1), revision(2)]) == adapter_file([revision(2), revision(1)])
