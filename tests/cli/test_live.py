"""`status --watch` when the API server is away for a moment, and on a real pseudo-terminal."""

import os
import pty
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from slipway_cli.errors import Unreachable
from slipway_cli.views import live, status
from slipway_cli.views.status import View
from testkit.cluster.api import GROUP_PATH, Api

from .conftest import SCRIPTS
from .objects import idle

SEEN = status.build_view(idle(), [], [], datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], View]:
    """Well, away, well, and then the user has seen enough; without a pause between them."""
    monkeypatch.setattr(live, "POLL_S", 0)

    def several() -> Iterator[View]:
        yield SEEN
        raise Unreachable("the API server is away")

    turns = [several(), several()]

    def read() -> View:
        if not turns:
            raise KeyboardInterrupt
        try:
            return next(turns[0])
        except Unreachable:
            turns.pop(0)
            raise

    return read


def test_lines_report_an_outage_and_its_end(answers: Callable[[], View], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        live.watch(answers, is_terminal=False)
    lines = [line.split(" ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    away, back = "the API server is away", "Healthy [no pods] serving"
    assert lines == [back, away, back, away]


def test_the_screen_keeps_what_was_last_seen(answers: Callable[[], View], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        live.watch(answers, is_terminal=True)
    assert capsys.readouterr().out.splitlines() == [
        "demo/chat  Healthy",
        "serving",
        "└── as last seen: the API server is away",
    ]


@pytest.mark.integration
def test_a_terminal_shows_the_tree_until_ctrl_c(
    environment: dict[str, str], api_server: Path, api: Api, namespace: str
) -> None:
    spec = {"model": {"uri": "file:///opt/slipway/models/tiny-v1"}}
    body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "chat"}, "spec": spec}
    assert api.post(f"{GROUP_PATH}/namespaces/{namespace}/modeldeployments", body).ok
    ours, theirs = pty.openpty()
    command = [str(SCRIPTS / "slipway"), "status", "chat", "--watch", "-n", namespace]
    variables = environment | {"KUBECONFIG": str(api_server), "TERM": "xterm-256color"}
    watching = subprocess.Popen(
        command, env=variables, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    try:
        shown = b""
        while b"the operator has not looked at it yet" not in shown:
            shown += os.read(ours, 4096)
        assert b"\x1b[1m" + f"{namespace}/chat".encode() in shown, "it is bold on a terminal"
        watching.send_signal(2)
        assert watching.wait(30) == 130
    finally:
        watching.kill()
        watching.wait()
        os.close(ours)
