"""Flags, their environment, and the routes file."""

from pathlib import Path

import pytest

from slipway_gateway.routing import routes_file
from slipway_gateway.routing.table import Problem, RouteTable
from slipway_gateway.settings import GatewaySettings
from tests.support.settings import parsed

GOOD = """
models:
  org/chat:
    salt: "1"
    backends:
    - {revision: 1234567890, version: 3.10, weight: 10, endpoints: ["http://127.0.0.1:8000/"]}
    - {revision: 1e10, version: 3.9, weight: 90, endpoints: ["http://[::1]:8000", "https://h"]}
"""


def test_defaults_flags_and_environment() -> None:
    assert parsed(GatewaySettings.parse) == parsed(lambda _: GatewaySettings())
    env = {"SLIPWAY_GATEWAY_DRAIN_TIMEOUT": "7", "SLIPWAY_GATEWAY_NAMESPACES": "a, b", "SLIPWAY_GATEWAY_PORT": "1"}
    loaded = parsed(GatewaySettings.parse, ["--port", "2", "--sticky-by", "user"], env)
    assert (loaded.drain_timeout_s, loaded.namespaces, loaded.port, loaded.sticky_by) == (7.0, ("a", "b"), 2, ("user",))
    assert parsed(GatewaySettings.parse, [], {"KUBECONFIG": "/k"}).kubeconfig == "/k"
    assert parsed(GatewaySettings.parse, [], {"SLIPWAY_GATEWAY_ALLOW_PURE_PYTHON": "true"}).allow_pure_python
    assert parsed(GatewaySettings.parse, ["--allow-pure-python"]).allow_pure_python


def test_an_empty_flag_is_a_value_and_an_empty_variable_is_none() -> None:
    empty = {"SLIPWAY_GATEWAY_TENANT_BY": "", "SLIPWAY_GATEWAY_OWN_NAMESPACE": "", "POD_NAMESPACE": "system"}
    settings = parsed(GatewaySettings.parse, [], empty)
    assert (settings.tenant_by, settings.own_namespace) == (("key", "user"), "system")
    assert parsed(GatewaySettings.parse, ["--tenant-by", ""]).tenant_by == ()


def test_the_last_of_equal_flags_counts() -> None:
    """Values of the chart's `extraArgs` come after its own."""
    assert parsed(GatewaySettings.parse, ["--sticky-by=session,key", "--sticky-by=user"]).sticky_by == ("user",)


def test_the_salt_is_shown_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    environment = {"SLIPWAY_GATEWAY_TENANT_SALT": "canary-salt"}
    settings = parsed(GatewaySettings.parse, [], environment)
    assert settings.tenant_salt.get_secret_value() == "canary-salt"
    for arguments in (["--help"], ["--port", "x"]):
        with pytest.raises(SystemExit):
            parsed(GatewaySettings.parse, arguments, environment)
    shown = capsys.readouterr()
    assert "canary-salt" not in f"{settings!r}{settings}{shown.out}{shown.err}"


@pytest.mark.parametrize(
    ("argv", "env", "message"),
    [
        (["--port", "x"], {}, "--port: 'x' is not a whole number"),
        ([], {"SLIPWAY_GATEWAY_PORT": "tcp://x"}, "SLIPWAY_GATEWAY_PORT: 'tcp://x' is not a whole number"),
        (["--access-log", "stdot"], {}, "--access-log: 'stdot' is neither off nor stdout, nor the path of a file"),
        (["--access-log-sample", "2"], {}, "--access-log-sample: '2' is more than 1"),
        (["--access-log-max-files", "0"], {}, "--access-log-max-files: '0' is less than 1"),
        (["--sticky-by", "cookie"], {}, "--sticky-by: unknown cookie; choose from session, user, key"),
        (["--tenant-by", "session"], {}, "--tenant-by: unknown session"),
        (["--redis-url", "http://x"], {}, "--redis-url: must begin with redis://, rediss://, redis+sentinel://"),
        (["--log-level", "loud"], {}, "--log-level: 'loud' is not one of 'debug', 'info', 'warning' or 'error'"),
        (["--hold-timeout", "-1"], {}, "--hold-timeout: '-1' is less than 0"),
        (["--max-client-percentage", "101"], {}, "--max-client-percentage: '101' is more than 100"),
        ([], {"SLIPWAY_GATEWAY_ALLOW_PURE_PYTHON": "perhaps"}, "'perhaps' is neither on nor off"),
        (
            ["--port", "x"],
            {"SLIPWAY_GATEWAY_MAX_HELD": "y"},
            "'x' is not a whole number; SLIPWAY_GATEWAY_MAX_HELD: 'y'",
        ),
        (["--port", "x\ny"], {}, r"--port: 'x\ny' is not"),
        (["--no-such"], {}, "unrecognized arguments: --no-such"),
        (["--drain-time", "1"], {}, "unrecognized arguments"),
    ],
)
def test_bad_settings_exit_with_a_message(
    argv: list[str], env: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(GatewaySettings.parse, argv, env)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(GatewaySettings.parse, ["--help"])
    shown = capsys.readouterr().out
    assert "--drain-timeout SECONDS" in shown and "SLIPWAY_GATEWAY_LOG_LEVEL" in shown


ONE = "backends: [{endpoints: [http://h]}]"


def test_mirrors_of_a_routes_file() -> None:
    mirror = "{name: m, revision: file, percentage: 20, match: [{name: x-team, prefix: qa-}]}"
    table = routes_file.parse(f"models: {{m: {{{ONE}, mirrorRoutes: [{mirror}]}}}}", 1)
    assert isinstance(table, RouteTable)
    (found,) = table.models["m"].mirror_routes
    assert (found.name, found.revision, found.percentage) == ("m", "file", 20)
    assert [(one.name, one.prefix) for one in found.match] == [("x-team", "qa-")]


def test_routes_file() -> None:
    table = routes_file.parse(GOOD, 4)
    assert isinstance(table, RouteTable)
    route = table.models["org/chat"]
    assert [(b.revision, b.version, b.weight) for b in route.backends] == [
        ("1234567890", "3.10", 10),
        ("1e10", "3.9", 90),
    ]
    assert route.generation == 4
    assert table.urls(route, "1234567890") == ("http://127.0.0.1:8000",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: [", "line 1"),
        ("- a", "object"),
        ("models: {m: {backends: [{endpoints: [http://h], weight: 60}]}}", "sum to 60"),
        ("models: {m: {backends: [{endpoints: [h:80]}]}}", "http://HOST:PORT"),
        ("models: {m: {backends: [{endpoints: [http://h], wieght: 1}]}}", "wieght"),
        ("models: {m: {backends: [{endpoints: [http://h], weight: much}]}}", "weight"),
        ("models: {m: {backends: [{endpoints: ['http://h:99999']}]}}", "http://HOST:PORT"),
        (f"models: {{m: {{{ONE}, mirrorRoutes: [{{name: m, revision: c, percentage: 5}}]}}}}", "none of the backends"),
        (f"models: {{m: {{{ONE}, mirrorRoutes: [{{name: m, revision: file, percentage: 101}}]}}}}", "from 0 to 100"),
        (f"models: {{m: {{{ONE}, mirrorRoutes: [{{name: m, revision: file, percent: 5}}]}}}}", "percent"),
    ],
)
def test_bad_routes_file_gives_a_reason(text: str, message: str) -> None:
    problem = routes_file.parse(text, 1)
    assert isinstance(problem, Problem) and message in problem.text


async def test_a_bad_edit_keeps_the_last_good_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "routes.yaml"
    published: list[RouteTable] = []
    watch = routes_file.FileSource(str(path), published.append)
    for text in (None, GOOD, "models: [", GOOD.replace("org/chat", "chat")):
        if text is not None:
            path.write_text(text)
        watch._load()
    assert [list(table.models) for table in published] == [["org/chat"], ["chat"]]
    assert [table.models[next(iter(table.models))].generation for table in published] == [1, 2]
    assert "last good one stays" in caplog.text
