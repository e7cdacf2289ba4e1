"""ModelRoutes on the command line: the list, and which rule a request fits."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from slipway_cli.commands.root import cli
from slipway_cli.objects import model_route
from testkit import ROOT
from testkit.cluster.api import Api
from tests.crds.objects import path

NIGHT, DAY = "2026-11-30T23:30:00+01:00", "2026-11-30T12:00:00+01:00"
EXAMPLE = yaml.safe_load((ROOT / "examples" / "model-route.yaml").read_text())


def run(*arguments: str, kubeconfig: str = "") -> Result:
    return CliRunner().invoke(cli, arguments, env={"KUBECONFIG": kubeconfig})


def text_of(done: Result) -> str:
    """What a command wrote, and the error that its program prints."""
    return f"{done.output}{done.exception or ''}"


@pytest.fixture
def file(tmp_path: Any) -> str:
    """A routes file with the rules of the example, and one route before it."""
    inner = {"rules": [{"name": "all", "backendRefs": [{"name": "chat", "kind": "ModelRoute"}]}]}
    written = tmp_path / "routes.yaml"
    written.write_text(yaml.safe_dump({"models": {}, "modelRoutes": {"chat": EXAMPLE["spec"], "front": inner}}))
    return str(written)


@pytest.mark.parametrize(
    ("options", "decides"),
    [
        (["--tools"], "large"),
        (["--tenant", "gold-1"], "large"),
        (["--prompt-bytes", "15997"], "large"),
        (["--prompt-bytes", "15996"], "rest"),
        (["--header", "x-priority=low", "--at", NIGHT], "night"),
        (["--header", "X-Priority=low", "--at", DAY], "rest"),
        (["--header", "X-Priority=high", "--at", NIGHT], "rest"),
    ],
)
def test_explain_says_which_rule_decides(file: str, options: list[str], decides: str) -> None:
    done = run("route", "explain", "gpt-4o", "--file", file, "-o", "json", *options)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["modelRoute"], found["decides"]) == ("file/chat", decides)
    assert [one["fits"] for one in found["rules"]] == [False] * (len(found["rules"]) - 1) + [True]


def test_explain_shows_reasons_weights_and_the_way_through_other_routes(file: str) -> None:
    shown = run("route", "explain", "front", "--file", file, "--at", DAY).stdout
    assert "-> all  the request fits it" in shown and "100 %  ModelRoute file/chat" in shown
    assert "it has no tools; or its prompt has about 0 tokens, not at least 4000; or it has no tenant" in shown
    assert "header X-Priority is not low" in shown
    assert " 90 %  ModelDeployment file/chat-small" in shown and " 10 %  ModelDeployment file/chat-tiny" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "there is no ModelRoute nothing; there is chat, front"),
        (["chat", "--header", "x"], "is no header: write NAME=VALUE"),
        (["chat", "--at", "12:00"], "is no time with its zone"),
    ],
)
def test_mistakes_are_named(file: str, arguments: list[str], message: str) -> None:
    done = run("route", "explain", *arguments, "--file", file)
    assert done.exit_code != 0 and message in text_of(done)


def test_a_file_that_is_wrong_is_named(tmp_path: Any) -> None:
    for text, message in (
        ("models: {}", "the file has no modelRoutes"),
        ("modelRoutes: {a: {rules: [{name: a}]}}", "modelRoutes.a: rules[0].backendRefs: is missing"),
        (
            "modelRoutes: {a: {rules: [{name: a, backendRefs: [{name: b, weight: 9}]}]}}",
            "weights that are 100 together",
        ),
        ("a: [", "cannot be read"),
    ):
        (tmp_path / "f").write_text(text)
        done = run("route", "explain", "a", "--file", str(tmp_path / "f"))
        assert done.exit_code == 1 and message in text_of(done)


def test_a_circle_ends_and_what_may_not_be_followed_is_named() -> None:
    rules = [
        {
            "name": "all",
            "backendRefs": [
                {"name": "a", "kind": "ModelRoute", "weight": 50},
                {"name": "x", "namespace": "o", "weight": 50},
            ],
        }
    ]
    a = model_route.read_route({"metadata": {"namespace": "n", "name": "a"}, "spec": {"rules": rules}})
    way = model_route.follow({a.name: a}, a, model_route.RequestShape(arrived=None))  # type: ignore[arg-type]
    shown = "\n".join(model_route.lines(way))
    assert shown.count("ModelRoute n/a\n") == 4 + 3 and "a request passes at most 4" in shown
    assert "ModelDeployment o/x  (its namespace does not allow it: refused with 503)" in shown


@pytest.mark.integration
def test_routes_of_a_cluster_are_listed_and_explained(api_server: Path, api: Api, namespace: str) -> None:
    def slipway(*arguments: str) -> Result:
        return run("-n", namespace, *arguments, kubeconfig=str(api_server))

    assert "No resources found" in slipway("routes").stderr
    body = EXAMPLE | {"metadata": {"name": "chat", "namespace": namespace}}
    assert api.post(path(namespace, plural="modelroutes"), body).ok
    why = {"type": "Accepted", "status": "False", "reason": "ModelNameTaken", "message": "chat belongs to b/chat",
           "lastTransitionTime": "2026-01-01T12:00:00Z"}  # fmt: skip
    status = {"status": {"names": ["gpt-4o"], "conditions": [why]}}
    assert api.merge(path(namespace, "chat", "status", plural="modelroutes"), status).ok
    listed = slipway("routes").stdout.splitlines()
    assert "ACCEPTED" in listed[0] and "ModelNameTaken" in listed[1] and "gpt-4o" in listed[1]
    assert json.loads(slipway("routes", "chat", "-o", "json").stdout)["spec"]["aliases"] == ["gpt-4o"]
    shown = slipway("route", "explain", "chat", "--tools").stdout
    assert "! Accepted is False (ModelNameTaken): chat belongs to b/chat" in shown
    assert "-> large  the request fits it" in shown
    missing = slipway("routes", "other")
    assert missing.exit_code == 1 and f"there is no ModelRoute other in namespace {namespace}" in text_of(missing)
