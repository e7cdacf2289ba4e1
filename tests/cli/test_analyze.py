"""`slipway analyze`: an analysis judged again from what kubectl saved, in a terminal and as a picture."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from slipway_cli.commands.root import cli
from slipway_cli.errors import CommandError
from slipway_cli.views import chart, picture
from slipway_cli.views.evidence import judge_again, read_runs
from testkit.cluster.api import GROUP_PATH, Api
from tests.operator.planning.test_analysis import BAD, QUICK, analyzing
from tests.operator.planning.test_measuring import measuring

TEMPLATE = {"kind": "AnalysisTemplate", "metadata": {"name": "quick"}, "spec": QUICK}


@pytest.fixture(scope="module")
def rejected() -> dict[str, Any]:
    """A ModelDeployment whose canary was rejected for its errors; read only."""
    world = analyzing()
    world.bad = {BAD: 0.1}
    world.run_until("Aborted", 400)
    return {"kind": "ModelDeployment", **world.obj(), "run": world.saved_run()}


@pytest.fixture
def run(rejected: dict[str, Any]) -> dict[str, Any]:
    """Its AnalysisRun; read only."""
    return dict(rejected["run"])


@pytest.fixture
def saved(rejected: dict[str, Any], run: dict[str, Any], tmp_path: Path) -> Path:
    """What `kubectl get mdep,sar,atmpl -o json` prints of it."""
    path = tmp_path / "saved.json"
    path.write_text(json.dumps({"kind": "List", "items": [rejected, run, TEMPLATE]}))
    return path


def analyze(*arguments: str | Path, text: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["analyze", *map(str, arguments)], input=text)


def trouble(result: Result) -> str:
    assert isinstance(result.exception, CommandError), result.output
    return str(result.exception)


def test_a_terminal_shows_the_verdict_the_evidence_and_each_metric(
    saved: Path, rejected: dict[str, Any], run: dict[str, Any]
) -> None:
    result = analyze("--file", saved)
    assert result.exit_code == 0, result.exception
    lines = result.stdout.splitlines()
    verdict = run["status"]["verdict"]
    assert lines[0].startswith(f"analysis quick: {rejected['status']['rollout']['analysis']['id']}, from 2026-01-01 ")
    assert lines[1:3] == [
        f"Fail (WorseThanStable): {verdict['message']}",
        f"evidence of all metrics together: {verdict['evidence']}; 100 rejects",
    ]
    plot = [row for row in lines if row[9:10] == "|"]
    last = [row[9 + chart.WIDTH :] for row in plot]
    assert last.index("*") < last.index("-"), "the newest evidence is beyond the threshold"
    assert [row for row in plot if row.startswith("     100 |---")], "the threshold is drawn"
    header, errors, _ = lines[-3:]
    assert " ".join(header.split()) == "METRIC FINDING BAD ON CANARY BAD ON STABLE EVIDENCE OVER TIME FORECAST"
    assert errors.split()[:2] == ["errors", "Worse"] and errors.endswith("decided")


def test_thresholds_alone_are_shown_without_a_picture_of_evidence(tmp_path: Path) -> None:
    world = measuring()
    world.values = {"rate": [0.5]}
    world.run_until("Aborted", 200)
    template = {"kind": "AnalysisTemplate", "metadata": {"name": "mine"}, "spec": world.templates["mine"]}
    path = tmp_path / "saved.json"
    items = [{"kind": "ModelDeployment", **world.obj()}, world.saved_run(), template]
    path.write_text(json.dumps({"kind": "List", "items": items}))
    title, verdict, metric = analyze("--file", path).stdout.splitlines()
    shown = world.parsed().rollout.analysis.verdict  # type: ignore[union-attr]
    assert shown and title.startswith("analysis mine: ")
    assert verdict == f"Fail (MetricFailed): {shown.message}" and metric == "rate: Failed; 1 failed; last value [0.5]"


def test_data_for_programs_has_the_evidence_over_time(saved: Path) -> None:
    [review] = json.loads(analyze("--file", saved, "-o", "json").stdout)
    assert (review["outcome"], review["threshold"], review["notes"]) == ("Fail", "100", [])
    assert review["log10Threshold"] == 2
    assert review["points"][-1][1] >= 2 > review["points"][-2][1]
    assert [item["row"]["name"] for item in review["metrics"]] == ["errors", "ttft"]


def test_standard_input_and_yaml_are_taken_and_a_name_chooses(rejected: dict[str, Any], run: dict[str, Any]) -> None:
    other = {"kind": "ModelDeployment", "metadata": {"name": "other"}, "spec": {}}
    text = yaml.safe_dump_all(json.loads(json.dumps([rejected, run, other, TEMPLATE])))
    assert "Fail (WorseThanStable)" in analyze("chat", "--file", "-", text=text).stdout
    assert "other has no analysis" in trouble(analyze("other", "--file", "-", text=text))
    assert "it holds: chat, other" in trouble(analyze("--file", "-", text=text))
    assert "it holds: chat, other" in trouble(analyze("absent", "--file", "-", text=text))


def test_a_picture_is_a_png(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "evidence.png"
    result = analyze("--file", saved, "--png", path)
    assert result.exit_code == 0, result.exception
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    assert f"drawn into {path}" in result.stderr


def test_picture_that_cannot_be_drawn_has_the_reason(
    rejected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = judge_again(rejected, read_runs(rejected, lambda name: rejected["run"]), {"quick": QUICK})
    with pytest.raises(CommandError, match="cannot be written: No such file or directory"):
        picture.draw(found, tmp_path / "nowhere" / "evidence.png")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(CommandError, match="pip install matplotlib"):
        picture.draw(found, tmp_path / "evidence.png")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "neither JSON nor YAML"),
        ("just words", "must hold the ModelDeployment"),
        ('{"kind": "ModelDeployment", "metadata": {"name": "chat"}}', "chat has no analysis"),
        (
            '{"kind": "ModelDeployment", "metadata": {}, "status": {"rollout": {"analysis": {"run": "x"}}}}',
            "x does not exist",
        ),
        (
            '{"items": [{"kind": "ModelDeployment", "metadata": {}, "status": {"rollout": {"analysis": {"run": "x"}}}},'
            ' {"kind": "AnalysisRun", "metadata": {"name": "x"}, "status": {"id": 1}}]}',
            "AnalysisRun x cannot be read",
        ),
    ],
)
def test_file_without_an_analysis_is_refused_with_a_message(text: str, sentence: str) -> None:
    assert sentence in trouble(analyze("--file", "-", text=text))


def test_a_run_or_a_template_that_is_not_there_is_named(rejected: dict[str, Any], run: dict[str, Any]) -> None:
    name = rejected["status"]["rollout"]["analysis"]["run"]
    assert f"AnalysisRun {name} does not exist" in trouble(analyze("--file", "-", text=json.dumps(rejected)))
    both = json.dumps({"items": [rejected, run]})
    assert "AnalysisTemplate 'quick' does not exist" in trouble(analyze("--file", "-", text=both))
    assert "cannot be read: " in trouble(analyze("--file", "/nowhere/saved.json"))


def test_without_a_name_or_a_file_the_command_line_makes_no_sense() -> None:
    result = analyze()
    assert result.exit_code == 2 and "give a NAME, or --file FILE" in result.stderr


# --- a cluster --------------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_object_and_template_are_read_from_a_cluster(
    rejected: dict[str, Any], api: Api, api_server: Path, namespace: str
) -> None:
    """What the API server kept of a status gives the same verdict, by the template as it gives it back."""
    there, kind = f"{GROUP_PATH}/namespaces/{namespace}", {"apiVersion": "slipway.dev/v1alpha1"}
    where = ("-n", namespace, "--kubeconfig", api_server)
    chat = {**kind, "kind": "ModelDeployment", "metadata": {"name": "chat"}, "spec": rejected["spec"]}
    made = api.post(f"{there}/modeldeployments", chat)
    assert made.ok, made.message
    assert "chat has no analysis" in trouble(analyze("chat", *where))
    kept = api.merge(f"{there}/modeldeployments/chat/status", {"status": rejected["status"]})
    assert kept.ok, kept.message
    name = rejected["status"]["rollout"]["analysis"]["run"]
    assert f"AnalysisRun {name} does not exist" in trouble(analyze("chat", *where))
    body = json.loads(json.dumps({**rejected["run"], "metadata": {"name": name}}))
    made = api.post(f"{there}/analysisruns", body)
    assert made.ok, made.message
    assert "AnalysisTemplate 'quick' does not exist" in trouble(analyze("chat", *where))
    made = api.post(f"{there}/analysistemplates", {**kind, **TEMPLATE})
    assert made.ok, made.message
    result = analyze("chat", *where, "-o", "json")
    assert result.exit_code == 0, result.exception
    [review] = json.loads(result.stdout)
    assert (review["outcome"], review["notes"]) == ("Fail", [])
    assert len(review["points"]) > 1


# --- charts -----------------------------------------------------------------------------------------------------------


def test_a_chart_holds_a_value_until_the_next_one() -> None:
    *rows, axis, times = chart.draw_plot([(15, 0.0), (30, 2.0)], 2.0, low=0, high=2, end=60)
    assert rows[0] == f"{'100':>8} |" + "-" * 29 + "*" * 31
    assert rows[-1] == f"{'1':>8} |" + " " * 14 + "*" * 15
    assert [row.strip() for row in rows[1:-1]] == ["|", "|", "|", "10 |", "|", "|", "|"]
    assert axis.endswith("+" + "-" * chart.WIDTH) and times.split() == ["0s", "60s"]


@pytest.mark.parametrize(("low", "high"), [(0, 2), (-3, 4), (-1, 5), (-3, 20)])
def test_every_power_of_ten_has_a_row(low: int, high: int) -> None:
    rows = chart.draw_plot([(1, 0.0)], 2.0, low=low, high=high, end=10)
    powers = [row.split("|")[0].strip() for row in rows[:-2]]
    assert [float(power) for power in powers if power] == pytest.approx([10.0**n for n in range(high, low - 1, -1)])


def test_a_spark_is_empty_before_the_first_value_and_keeps_to_its_edges() -> None:
    line = chart.draw_sparkline([(8, -9.0), (16, 99.0)], low=0.0, high=2.0, end=16)
    assert line == " " * 7 + "▁" * 8 + "█"
