"""Registered models on the command line: versions with their aliases and what serves them, and the facts of one."""

from typing import Any

from click.testing import CliRunner

from slipway_cli.commands.root import cli
from slipway_cli.objects.registered_model import RegisteredVersion, describe, list_versions, model_of
from slipway_cli.views.status import build_view, to_data
from tests.cli import objects
from tests.cli.test_view import NOW, drawn

REGISTRY = {
    "uri": "models:/chat@champion",
    "version": "4",
    "source": "s3://models/chat/4",
    "since": "2026-01-01T12:00:00Z",
    "owner": "ann",
    "metrics": ["loss=0.5"],
    "tags": ["stage=prod"],
    "aliases": ["champion=4", "old=2"],
    "latest": "12",
}


def made(name: str, *revisions: tuple[str, str, int], **registry: Any) -> dict[str, Any]:
    served = [{"revision": "a", "role": role, "registry": uri, "weight": weight} for uri, role, weight in revisions]
    status = {"revisions": served, "registry": {**REGISTRY, **registry}}
    return {"metadata": {"name": name, "namespace": "demo"}, "status": status}


def test_versions_have_their_aliases_and_what_serves_them() -> None:
    chat = made("chat", ("models:/chat/3", "stable", 90), ("models:/chat/4", "canary", 10))
    plain = {"metadata": {"name": "x", "namespace": "demo"}, "status": {"revisions": [{"revision": "b"}]}}
    assert list_versions([chat, plain, {"metadata": {"name": "y", "namespace": "demo"}}]) == [
        RegisteredVersion("chat", "2", ("old",), False),
        RegisteredVersion("chat", "3", (), False, ("demo/chat stable 90%",)),
        RegisteredVersion("chat", "4", ("champion",), False, ("demo/chat canary 10%",)),
        RegisteredVersion("chat", "12", (), True),
    ]


def test_the_status_shows_what_the_registry_has_and_controls_no_terminal() -> None:
    deployment = objects.in_flight()
    deployment["status"]["registry"] = {**REGISTRY, "description": "red \x1b[31m and \u202egnp"}
    view = build_view(deployment, [], [], NOW)
    text = "\n".join(drawn(view))
    assert "registered model" in text and "models:/chat@champion is version 4" in text
    for part in ("owner ann", "metrics loss=0.5", "tags stage=prod", "aliases champion=4, old=2", "s3://models/chat/4"):
        assert part in text
    assert "\x1b" not in text and "\u202e" not in text
    assert to_data(view)["registry"]


def test_other_and_broken_statuses_have_no_registered_model() -> None:
    assert describe({}) == () and describe({"registry": "text"}) == ()
    assert list_versions([made("chat", uri="file:///models", latest="", aliases="text")]) == []
    assert (model_of("models:/a b/3"), model_of("models:/a@x"), model_of("s3://a/b")) == ("a b", "a", "")


def test_the_help_says_what_is_listed() -> None:
    shown = CliRunner().invoke(cli, ["models", "--help"]).output
    assert "aliases" in shown and "--all-namespaces" in shown
