"""`slipway verdict`: what it shows of a statement, and what it does not verify."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from slipway_cli.commands.root import cli
from slipway_cli.objects.verdict import NoStatement, SignedRecord, find_difference, read_signed, read_statement
from slipway_contracts.verdict_statements import ANNOTATION, PAYLOAD_TYPE, PREDICATE_TYPE, STATEMENT_TYPE
from slipway_process import dsse

KEY = ed25519.Ed25519PrivateKey.generate()
DIGEST = "a" * 64
STATEMENT: dict[str, Any] = {
    "_type": STATEMENT_TYPE,
    "subject": [{"name": "files", "uri": "hf://org/m", "digest": {"sha256": DIGEST}}],
    "predicateType": PREDICATE_TYPE,
    "predicate": {
        "verdict": "rejected",
        "reason": "worse \x1b[31m and \u202egnp",
        "decidedAt": "2026-01-01T00:00:00Z",
        "signedAt": "2026-01-01T00:00:01Z",
        "operator": {"name": "slipway-operator", "version": "1.2.3"},
        "deployment": {"kind": "ModelDeployment", "namespace": "ml", "name": "chat", "uid": "u1"},
        "revision": "aaaaaaaaaa",
        "attempt": 2,
        "requests": [{"field": "spec.rollout.abort", "value": "aaaaaaaaaa/2", "by": [{"manager": "kubectl-patch"}]}],
        "analyses": [
            {
                "run": {"name": "chat-run", "uid": "r1", "sequence": 3},
                "outcome": "Fail",
                "reason": "WorseThanStable",
                "metrics": [
                    {"name": "errors", "finding": "Worse", "n": [120, 360], "bad": [60, 3], "unit": "Ratio",
                     "low": 4.5, "bound": 90.0, "limit": 6.0},
                    {"name": "ttft", "finding": "Undecided", "n": [120, 360], "bad": [6, 30]},
                ],
            }
        ],
        "metricsOmitted": 4,
    },
}  # fmt: skip


def signed(statement: Any = STATEMENT, key: dsse.PrivateKey = KEY) -> str:
    return dsse.sign(PAYLOAD_TYPE, json.dumps(statement).encode(), key)


def public(folder: Path, *keys: dsse.PrivateKey) -> str:
    pems = (one.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for one in keys)
    (folder / "public.pem").write_bytes(b"".join(pems))
    return str(folder / "public.pem")


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["verdict", *arguments], input=text)


def test_a_statement_is_shown_verified_and_controls_no_terminal(tmp_path: Path) -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    done = run("--file", "-", "--verify", public(tmp_path, other, KEY), text=signed())
    assert done.exit_code == 0, done.output
    for part in (
        "rejected at 2026-01-01T00:00:00Z: ModelDeployment ml/chat",
        "revision aaaaaaaaaa, attempt 2",
        f"files sha256:{DIGEST} hf://org/m",
        "spec.rollout.abort: aaaaaaaaaa/2 by kubectl-patch",
        "analysis chat-run: Fail WorseThanStable",
        "  errors: Worse, bad 60/3 of 120/360 (new, stable); Ratio 4.5 to 90.0, limit 6.0\n",
        "  ttft: Undecided, bad 6/30 of 120/360 (new, stable)\n",
        "4 more metrics",
        "stated by slipway-operator 1.2.3",
    ):
        assert part in done.stdout
    assert f"verified: signed by the key {dsse.key_id(KEY.public_key())}" in done.stderr
    assert "\x1b" not in done.output and "\u202e" not in done.output


def test_without_a_key_nothing_is_verified_and_the_envelope_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "envelope").write_text(signed())
    done = run("--file", str(tmp_path / "envelope"), "-o", "envelope")
    assert (done.exit_code, done.stdout) == (0, signed() + "\n") and "not verified" in done.stderr
    assert json.loads(run("--file", "-", "-o", "json", text=signed()).stdout) == STATEMENT


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (signed(key=ec.generate_private_key(ec.SECP256R1())), "none of the given keys signed it"),
        (signed().replace('"payload":"', '"payload":"AAAA'), "or it was changed since"),
        (signed().replace("in-toto", "other"), "not of the type"),
        (signed(STATEMENT | {"predicateType": "https://slsa.dev/provenance/v1"}), "no statement about the verdict"),
        (signed([1]), "no in-toto statement"),
        ("{}", "no DSSE envelope"),
        ("\x00", "no DSSE envelope"),
    ],
)
def test_what_is_not_verified_fails(tmp_path: Path, text: str, named: str) -> None:
    done = run("--file", "-", "--verify", public(tmp_path, KEY), text=text)
    assert done.exit_code != 0 and named in f"{done.output}{done.exception}" and not done.stdout.startswith("rejected")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "private.pem").write_text("text")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for arguments, named in (
        (("--file", "-", "--verify", str(tmp_path / "private.pem")), "no public key in PEM"),
        (("--file", "-", "--verify", str(tmp_path / "missing.pem")), "missing.pem cannot be read"),
        (("--file", str(tmp_path / "missing")), "missing cannot be read"),
        (("--file", str(tmp_path / "binary")), "binary cannot be read"),
        ((), "give the NAME"),
        (("chat", "--file", "-"), "give the NAME"),
    ):
        done = run(*arguments, text=signed())
        assert done.exit_code != 0 and named in f"{done.output}{done.exception}"


def record(revision: str, ordinal: int, uid: str = "u1", **annotations: str) -> dict[str, Any]:
    metadata = {
        "labels": {"slipway.dev/revision": revision},
        "ownerReferences": [{"uid": uid}],
        "annotations": annotations,
    }
    return {"metadata": metadata, "revision": ordinal}


def test_records_of_one_deployment_with_a_statement_are_found() -> None:
    weights = {"slipway.dev/weights": json.dumps({"digest": f"sha256:{DIGEST}"})}
    items = [
        record("b", 2, **{ANNOTATION: "x"}, **weights),
        record("a", 1, **{ANNOTATION: "y", "slipway.dev/weights": "["}),
        record("c", 3),
        record("d", 4, "another", **{ANNOTATION: "z"}),
    ]
    assert read_signed(items, "u1") == [SignedRecord("a", 1, "y"), SignedRecord("b", 2, "x", DIGEST)]


@pytest.mark.parametrize(
    ("uid", "of", "named"),
    [
        ("u1", SignedRecord("aaaaaaaaaa", 1, "", DIGEST), None),
        ("u1", SignedRecord("aaaaaaaaaa", 1, ""), None),
        ("u2", SignedRecord("aaaaaaaaaa", 1, "", DIGEST), "another ModelDeployment"),
        ("u1", SignedRecord("bbbbbbbbbb", 1, "", DIGEST), "another revision"),
        ("u1", SignedRecord("aaaaaaaaaa", 1, "", "b" * 64), "other files"),
    ],
)
def test_a_statement_that_was_copied_from_elsewhere_is_noticed(uid: str, of: SignedRecord, named: str | None) -> None:
    found = find_difference(STATEMENT, {"metadata": {"uid": uid}}, of)
    assert found is None if named is None else named in str(found)


@pytest.mark.parametrize(
    "payload", [b"", b"\xff", b"[" * 100_000, b"{}", json.dumps(STATEMENT | {"subject": 1}).encode()]
)
def test_any_payload_is_a_statement_or_refused(payload: bytes) -> None:
    with pytest.raises(NoStatement):
        read_statement(payload)


def test_a_statement_of_any_shape_is_shown() -> None:
    odd: dict[str, Any] = STATEMENT | {
        "subject": [1, {"digest": 1}],
        "predicate": {"analyses": [1, {"run": 1}], "requests": {}},
    }
    done = run("--file", "-", text=signed(odd))
    assert done.exit_code == 0, done.output
