"""Each verdict is signed once, with the numbers that it was made of, and holds nothing up."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

from slipway_contracts.verdict_statements import MOST_BYTES, PAYLOAD_TYPE, PREDICATE_TYPE, STATEMENT_TYPE
from slipway_operator.component import ReconciledDeployment
from slipway_operator.kube.errors import Fenced, Refused
from slipway_operator.model.cluster.plan import Plan
from slipway_operator.model.deployment.spec import parse
from slipway_process import dsse
from tests.operator.planning.test_analysis import BAD, analyzing, step
from tests.operator.statements.world import COMMIT, VERSION, Followed, digest_of, write_key
from tests.support.model_cluster import ModelCluster, healthy, model


def followed(world: ModelCluster, folder: Path, **options: Any) -> Followed:
    write_key(folder / "key.pem")
    return Followed(world, folder / "key.pem", **options)


def payload(of: Followed, text: str) -> dict[str, Any]:
    """The statement in an envelope that the library of in-toto verifies by the key of the file."""
    public = dsse.private_key(of.key_file.read_bytes()).public_key()
    envelope = Envelope.from_dict(json.loads(text))
    envelope.verify([SSlibKey.from_crypto(public, keyid=dsse.key_id(public))], 1)
    assert envelope.payload_type == PAYLOAD_TYPE and len(text) <= MOST_BYTES
    found: dict[str, Any] = json.loads(envelope.payload)
    return found


async def test_a_rejection_is_signed_with_the_numbers_of_its_analysis(tmp_path: Path) -> None:
    of = followed(analyzing(), tmp_path)
    of.world.bad[BAD] = 0.9
    of.world.run_until("Aborted")
    await of.sign()
    [(revision, text)] = of.signed
    found, rollout = payload(of, text), of.world.parsed().rollout
    assert rollout and rollout.abort and rollout.analysis
    assert (found["_type"], found["predicateType"]) == (STATEMENT_TYPE, PREDICATE_TYPE)
    [files] = found["subject"]
    assert files == {"name": "files", "uri": BAD, "digest": {"sha256": digest_of(BAD).removeprefix("sha256:")}}
    predicate = found["predicate"]
    assert (predicate["verdict"], predicate["revision"], predicate["attempt"]) == ("rejected", revision, 1)
    assert predicate["reason"].startswith(f"revision {revision}: AnalysisFailed: ")
    assert predicate["deployment"] == {"kind": "ModelDeployment", "namespace": "default", "name": "chat", "uid": "u1"}
    assert predicate["operator"] == {"name": "slipway-operator", "version": VERSION} and not predicate["requests"]
    rows = [one["row"] for one in predicate["decisions"]]
    assert rows[0] == "new-revision" and rows[-1] == "analysis-failed"
    [analysis] = predicate["analyses"]
    run = of.world.runs[rollout.analysis.run]
    assert analysis["run"] == {
        "name": rollout.analysis.run, "uid": run["metadata"]["uid"], "sequence": run["status"]["sequence"],
    }  # fmt: skip
    assert (analysis["outcome"], analysis["reason"]) == ("Fail", "WorseThanStable")
    [errors] = [one for one in run["status"]["verdict"]["metrics"] if one["name"] == "errors"]
    [shown] = [one for one in analysis["metrics"] if one["name"] == "errors"]
    assert analysis["metrics"][0] == shown, "what rejects comes first"
    assert shown["finding"] == "Worse" and shown["unit"] == "Ratio" and shown["limit"] == 6.0
    assert shown["n"] == [errors["canarySamples"], errors["stableSamples"]] and shown["n"][0] > 0
    assert shown["bad"] == [errors["canaryBad"], errors["stableBad"]] and shown["low"] > 1
    assert of.woken == [("default", "chat")] and not of.events


async def test_a_promotion_has_the_analysis_that_it_followed_from(tmp_path: Path) -> None:
    """The status of a promotion names no run any more."""
    of = followed(analyzing(step(), {"setWeight": 60}), tmp_path)
    of.world.run_until(None, 3000)
    await of.sign()
    [(revision, text)] = of.signed
    predicate = payload(of, text)["predicate"]
    assert revision == of.world.parsed().stable_revision
    assert (predicate["verdict"], predicate["decisions"][-1]["row"]) == ("promoted", "promoted")
    [analysis] = predicate["analyses"]
    assert analysis["outcome"] == "Pass" and {one["name"] for one in analysis["metrics"]} == {"errors", "ttft"}
    assert {one["finding"] for one in analysis["metrics"]} == {"NotWorse"}


async def test_each_verdict_is_signed_once_also_by_another_operator_and_with_another_key(tmp_path: Path) -> None:
    of = followed(healthy(steps=[{"setWeight": 50}]), tmp_path)
    of.world.run(10)
    await of.sign()
    assert not of.signed, "the first revision is compared with nothing"
    of.world.edit(model=model("v2"))
    of.world.run_until(None)
    await of.sign()
    write_key(of.key_file)
    for _ in range(2):
        of.restart()
        of.world.run(10)
        await of.sign()
    assert len(of.signed) == 1 and not of.runner._pending
    of.world.edit(model=model("v3"))
    of.world.run_until(None)
    await of.sign()
    assert [payload(of, text)["predicate"]["verdict"] for _, text in of.signed[1:]] == ["promoted"]


async def test_a_run_that_another_client_changed_is_not_signed(tmp_path: Path) -> None:
    of = followed(analyzing(), tmp_path)
    of.world.bad[BAD] = 0.9
    of.world.run_until("Aborted")
    rollout = of.world.parsed().rollout
    assert rollout and rollout.analysis
    run = of.world.runs[rollout.analysis.run]
    run["status"]["verdict"]["metrics"][0]["canaryBad"] = 0
    run["metadata"]["generation"] += 1
    of.restart()
    of.world.run(10)
    await of.sign()
    [(_, text)] = of.signed
    predicate = payload(of, text)["predicate"]
    assert predicate["verdict"] == "rejected" and predicate["analyses"] == []


async def test_what_people_requested_has_their_clients(tmp_path: Path) -> None:
    of = followed(healthy(steps=[{"setWeight": 50}, {"pause": {}}]), tmp_path)
    of.world.edit(model=model("v2"))
    of.world.run_until("Paused")
    rollout = of.world.parsed().rollout
    assert rollout
    plain = of.world.obj
    fields = [{"manager": "kubectl-patch", "operation": "Update", "time": "2026-01-01T00:00:00Z",
               "fieldsV1": {"f:spec": {"f:rollout": {"f:abort": {}}}}}]  # fmt: skip

    def managed() -> dict[str, Any]:
        found = plain()
        return found | {"metadata": found["metadata"] | {"managedFields": fields}}

    of.world.obj = managed  # type: ignore[method-assign]
    of.world.edit(rollout__abort=rollout.attempt_token, rollout__promote=f"{'a' * 10}/1/1")
    of.world.run_until("Aborted")
    await of.sign()
    [(_, text)] = of.signed
    [request] = payload(of, text)["predicate"]["requests"]
    assert (request["field"], request["value"]) == ("spec.rollout.abort", rollout.attempt_token)
    assert [one["manager"] for one in request["by"]] == ["kubectl-patch"]


async def test_without_a_usable_key_there_is_one_event_and_the_rollout_goes_on(tmp_path: Path) -> None:
    of = followed(healthy(steps=[{"setWeight": 50}]), tmp_path)
    of.key_file.write_text("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n")
    of.world.edit(model=model("v2"))
    of.world.run_until(None)
    for _ in range(3):
        await of.sign()
    [event] = of.events
    assert event["reason"] == "VerdictNotSigned" and "cannot be used" in event["message"]
    assert "c2VjcmV0" not in event["message"]
    of.key_file.unlink()
    await of.sign()
    assert "cannot be read: No such file" in of.events[1]["message"] and not of.signed
    await of.sign(again=False)
    write_key(of.key_file)
    await of.sign(again=False)
    assert not of.signed, "it waits"
    await of.sign()
    [(_, text)] = of.signed
    assert payload(of, text)["predicate"]["verdict"] == "promoted"


async def test_a_model_that_nothing_pins_has_no_statement(tmp_path: Path) -> None:
    of = followed(healthy(steps=[{"setWeight": 50}]), tmp_path, pinned=False)
    of.world.edit(model=model("v2"))
    of.world.run_until(None)
    await of.sign()
    await of.sign()
    [event] = of.events
    assert event["reason"] == "VerdictNotSigned" and "no digest" in event["message"] and not of.signed
    of.pinned = True
    of.world.run(10)
    await of.sign()
    assert len(of.signed) == 1, "a pod reported it since"


@pytest.mark.parametrize(
    ("scheme", "kind", "name"), [("hf", "commit", "gitCommit"), ("oci", "manifest", "sha256"), ("s3", "", "")]
)
async def test_the_commit_or_manifest_that_files_are_from_is_a_subject(
    tmp_path: Path, scheme: str, kind: str, name: str
) -> None:
    of = followed(healthy(steps=[{"setWeight": 50}]), tmp_path)
    of.world.edit(model={"uri": f"{scheme}://org/model", "version": "v2"})
    of.world.run_until(None)
    await of.sign()
    [(_, text)] = of.signed
    subjects = payload(of, text)["subject"]
    assert [one["name"] for one in subjects] == (["files", kind] if kind else ["files"])
    assert not kind or subjects[1]["digest"] == {name: COMMIT}


@pytest.mark.parametrize("fault", [Fenced("no lease"), Refused(403, "no right")])
async def test_what_the_api_server_refuses_is_written_later(tmp_path: Path, fault: Exception) -> None:
    of = followed(healthy(steps=[{"setWeight": 50}]), tmp_path)
    of.world.edit(model=model("v2"))
    of.world.run_until(None)
    of.fault = fault
    await of.sign()
    assert not of.signed and len(of.events) == isinstance(fault, Refused)
    of.leads = False
    of.fault = None
    await of.sign()
    assert not of.signed, "another operator has the lease"
    of.leads = True
    await of.sign()
    assert len(of.signed) == 1


async def test_nothing_is_kept_of_what_is_gone(tmp_path: Path) -> None:
    of = followed(healthy(steps=[{"setWeight": 50}]), tmp_path)
    of.world.edit(model=model("v2"))
    of.world.run_until(None)
    assert of.runner._pending
    of.runner.leave(("default", "another"))
    assert of.runner._pending
    of.runner.leave(("default", "chat"))
    assert not of.runner._pending
    of.world.run(1)
    of.runner.reset()
    assert not of.runner._pending
    of.world.run(1)
    for item in of.runner._pending.values():
        item.record = "deleted"
    await of.sign()
    assert not of.runner._pending and not of.signed and not of.events


async def test_a_statement_of_many_metrics_has_what_rejects_and_counts_the_rest(tmp_path: Path) -> None:
    of = followed(analyzing(), tmp_path)
    more = [{"name": f"metric-{number}-{'x' * 40}", "event": "TruncatedAnswer"} for number in range(29)]
    of.world.templates["quick"]["metrics"] = [*more, *of.world.templates["quick"]["metrics"]]
    for metric in of.world.templates["quick"]["metrics"]:
        metric["share"] = 1 / 31
    of.world.bad[BAD] = 0.9
    of.world.run_until("Aborted")
    await of.sign()
    [(_, text)] = of.signed
    predicate = payload(of, text)["predicate"]
    rows = predicate["analyses"][0]["metrics"]
    assert rows[0]["finding"] == "Worse" and 3 <= len(rows) < 31
    assert len(rows) + predicate["metricsOmitted"] == 31


async def test_the_longest_texts_fit(tmp_path: Path) -> None:
    of = followed(healthy(steps=[{"setWeight": 50}, {"pause": {}}]), tmp_path)
    uri = f"s3://bucket/{'é' * 200}"
    of.world.edit(model={"uri": uri, "version": "v" * 60})
    of.world.run_until("Paused")
    rollout = of.world.parsed().rollout
    assert rollout
    of.world.edit(rollout__abort=rollout.attempt_token)
    of.world.run_until("Aborted")
    status = of.world.parsed()
    assert status.rollout and status.rollout.abort
    long = replace(status.rollout.abort, message="\u4e2d\ud800" * 2000)
    planned = replace(status, rollout=replace(status.rollout, abort=long))
    of.restart()
    place = (("default", "chat"), status.rollout.revision)
    obj = of.world.obj()
    of.runner.after(ReconciledDeployment(place[0], obj, parse(obj)), of.world.observed(), Plan(planned), of.world.now)
    await of.sign()
    [(_, text)] = of.signed
    assert payload(of, text)["predicate"]["reason"].startswith(f"revision {place[1]}: UserAbort")
