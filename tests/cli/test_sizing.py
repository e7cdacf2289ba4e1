"""Pure parts of `slipway bench`, `slipway size` and `slipway cost`."""

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from slipway_cli.bench.prompts import Tokens, prompt
from slipway_cli.commands import sizing as commands
from slipway_cli.commands.root import cli
from slipway_cli.sizing import answer, capacity, costs, lengths, objectives, report, search, steps, summary
from slipway_cli.sizing.answer import Demand, PodCapacity
from slipway_cli.sizing.report import Report
from slipway_cli.sizing.search import Plan
from slipway_cli.sizing.steps import Outcome, Step
from slipway_cli.views import costs as cost_views
from slipway_cli.views import sizing as views
from slipway_operator.scaling_model import fit_text
from slipway_operator.scaling_model.capacity_model import CapacityModel, PodLoad

from .objects import STABLE, deployment

TTFT = {"ttftP95": 100}
TIMES = st.lists(st.floats(0.1, 1e4), min_size=1, max_size=300)


def step(concurrency: int, ttft: float, count: int = 200, mean_ms: float = 100.0, **more: Any) -> Step:
    times = (ttft,) * count
    return Step(concurrency, 10.0, mean_ms, times, (), times, 10 * count, 20 * count, **more)


def saved(*measured: Step, **more: Any) -> Report:
    fields: dict[str, Any] = {"version": 1, "model": "chat", "at": "2026-01-01T00:00:00Z", "pods": 1}
    fields |= {"objectives": TTFT, "max_error_share": 0.01, "kind": "chat", "prompt_tokens": "10", "ended": "Complete"}
    fields |= {"output_tokens": "20", "tokens": "counted", "steps": tuple(map(report.saved, measured))}
    return Report(**(fields | more))


# Objectives and lengths


def test_objectives_are_those_of_spec_slo() -> None:
    text = "ttftP95=800ms,itlP95=60ms,latencyP99=2s"
    limits = {"ttftP95": 800, "itlP95": 60, "latencyP99": 2000}
    assert objectives.parse(text) == limits
    assert objectives.of_spec({"slo": {"ttftP95": "800ms", "itlP95": "60ms", "latencyP99": "2s"}}) == limits
    assert objectives.of_spec({"slo": {"availability": "99.9", "window": "28d"}}) == objectives.of_spec({}) == {}
    assert objectives.parse(objectives.text_of(limits)) == limits


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "'' is none of"),
        ("p95=1s", "'p95=1s' is none of ttftP95, itlP95, latencyP99"),
        ("ttftP95", "with a limit"),
        ("ttftP95=0ms", "ttftP95: '0ms' is no time"),
        ("ttftP95=1s,ttftP95=2s", "ttftP95 has two limits"),
        ("latencyP99=9999s", "latencyP99: 9999s is longer than 3600s"),
    ],
)
def test_a_wrong_objective_is_named(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        objectives.parse(text)


@pytest.mark.parametrize("text", ["", "0", "5-3", "1~0", "a", "1-2-3", "9999999", "-5", "1.5", "1e3", "٣"])
def test_wrong_lengths_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no length|the first number"):
        lengths.parse(text)


@given(st.integers(1, 5000), st.integers(0, 5000), st.booleans())
def test_lengths_are_of_their_distribution(low: int, more: int, skewed: bool) -> None:
    """Over many requests the mean and the 95th percentile are those that the text has."""
    more = min(more, 9 * low) if skewed else more
    chosen = lengths.parse(f"{low}{'~' if skewed else '-'}{low + more}")
    assert lengths.parse(str(chosen)).mean == chosen.mean
    drawn = sorted(chosen.at(lengths.places(number)[0]) for number in range(1000))
    assert min(drawn) >= 1
    if skewed:
        assert drawn[499] == pytest.approx(low, rel=0.02, abs=1)
        assert drawn[949] == pytest.approx(low + more, rel=0.05, abs=1)
    else:
        assert low <= drawn[0] and drawn[-1] <= low + more
        assert sum(drawn) / 1000 == pytest.approx(chosen.mean, rel=0.02, abs=0.5)


def test_prompts_and_outputs_are_independent() -> None:
    pairs = [lengths.places(number) for number in range(1000)]
    quarters = [sum((a < 0.5) is x and (b < 0.5) is y for a, b in pairs) for x in (True, False) for y in (True, False)]
    assert all(220 < count < 280 for count in quarters)


def test_prompts_share_no_beginning_and_have_their_words() -> None:
    texts = [prompt("run-", number, words) for number in range(200) for words in (1, 2, 50)]
    assert len({text.split()[0] for text in texts}) == 200
    assert [len(text.split()) for text in texts[:3]] == [1, 2, 50]
    assert len({" ".join(text.split()[1:]) for text in texts[2::3]}) > 190


@given(st.floats(0, 50), st.floats(0.2, 5), st.integers(1, 5000))
def test_words_follow_from_what_the_server_counted(fixed: float, each: float, tokens: int) -> None:
    fitted = Tokens.fitted((64, round(fixed + each * 64)), (192, round(fixed + each * 192)))
    words = fitted.words(tokens)
    assert words == 1 or abs(fixed + each * words - tokens) <= 2 + each + words / 64
    assert Tokens.fitted((64, 5), (192, 5)) == Tokens(), "a server that counts nonsense"


# Steps


@given(TIMES, st.sampled_from([0.5, 0.95, 0.99]), st.floats(0.1, 1e4))
def test_a_quantile_is_within_a_limit_where_few_enough_miss_it(times: list[float], share: float, limit: float) -> None:
    times.sort()
    late = sum(time > limit for time in times)
    assert (steps.quantile(times, share) <= limit) == (late <= (1 - share) * len(times) + 1e-9)
    assert steps.quantile(times, share) in times


@pytest.mark.parametrize(
    ("measured", "limits", "expected"),
    [
        (step(1, 90), TTFT, Outcome.HOLDS),
        (step(1, 110), TTFT, Outcome.MISSED),
        (step(1, 90, whole=False), TTFT, Outcome.FEW),
        (step(1, 110, whole=False), TTFT, Outcome.MISSED),
        (step(1, 90, count=4), TTFT, Outcome.FEW),
        (step(1, 90), TTFT | {"itlP95": 10}, Outcome.FEW),
        (step(1, 90, errors={"500": 3}), TTFT, Outcome.MISSED),
        (step(1, 90, errors={"500": 1}), TTFT, Outcome.HOLDS),
        (Step(1, 1.0, 0.0), TTFT, Outcome.FEW),
        (Step(1, 1.0, 1.0, errors={"no response": 9}), TTFT, Outcome.MISSED),
    ],
)
def test_what_a_step_says(measured: Step, limits: dict[str, int], expected: Outcome) -> None:
    assert steps.outcome(measured, limits, 0.01) is expected


def test_it_is_sure_with_enough_requests_alone() -> None:
    assert not steps.is_sure(step(1, 90, count=40), TTFT)
    assert steps.is_sure(step(1, 90, count=60), TTFT)
    assert steps.is_sure(step(1, 110, count=5), TTFT)


def test_the_rate_of_a_closed_loop() -> None:
    measured = step(8, 90, mean_ms=200.0, errors={"500": 200})
    assert measured.rate == pytest.approx(8 / 0.2 / 2), "half of the requests failed"
    assert measured.tokens_per_second == pytest.approx(20 * measured.rate)


# The search

PLANS = st.builds(
    Plan,
    max_concurrency=st.integers(1, 300),
    step_s=st.just(1.0),
    refinements=st.integers(0, 8),
    max_requests=st.just(10**6),
    max_seconds=st.just(1e6),
)


@given(PLANS, st.integers(0, 400))
def test_the_most_that_holds_is_found_in_as_many_steps_as_planned(plan: Plan, most: int) -> None:
    tried: list[tuple[int, Outcome]] = []
    while (number := search.following(plan, tried)) is not None:
        assert 1 <= number <= plan.max_concurrency
        assert number not in dict(tried)
        tried.append((number, Outcome.HOLDS if number <= most else Outcome.MISSED))
    assert len(tried) <= plan.steps
    best = search.best(tried)
    assert best is None or best <= most
    failed = [number for number, outcome in tried if outcome is Outcome.MISSED]
    if not failed:
        assert best == plan.max_concurrency
    else:
        width = min(failed) - (best or 0)
        assert width <= math.ceil(failed[0] / 2 / 2**plan.refinements)


@given(PLANS, st.lists(st.sampled_from(list(Outcome)), max_size=40))
def test_whatever_steps_say_the_search_ends(plan: Plan, says: list[Outcome]) -> None:
    tried: list[tuple[int, Outcome]] = []
    while (number := search.following(plan, tried)) is not None:
        tried.append((number, says[len(tried)] if len(tried) < len(says) else Outcome.MISSED))
        assert len(tried) <= plan.steps


@given(PLANS, st.integers(20, 10**6))
def test_quotas_together_are_within_the_bound(plan: Plan, most: int) -> None:
    bounded = Plan(plan.max_concurrency, 1.0, plan.refinements, most, 1e6)
    sent = 0
    for tried in range(bounded.steps):
        sent += search.quota(bounded, sent, tried)
    assert sent <= most or most < bounded.steps


# Summary and report


def test_the_summary_has_the_best_step_its_bounds_and_the_limit() -> None:
    measured = [step(1, 20), step(2, 30), step(4, 60, count=40), step(8, 150)]
    found = summary.summarize(measured, TTFT, 0.01)
    assert found.best is measured[2]
    assert (found.low, found.high) == (measured[1].rate, measured[3].rate), "the third is not sure"
    assert found.limit == "ttftP95"
    assert "at 8 in progress ttftP95 is 1.50 of its limit: 200 of 200 requests missed it" in found.why


def test_without_a_miss_the_limit_is_throughput_or_not_reached() -> None:
    grows = [step(1, 20, mean_ms=100), step(2, 20, mean_ms=100)]
    assert summary.summarize(grows, TTFT, 0.01).limit == summary.NOT_REACHED
    assert summary.summarize([grows[0], step(2, 20, mean_ms=195)], TTFT, 0.01).limit == summary.THROUGHPUT
    assert summary.summarize([step(1, 20, count=2)], TTFT, 0.01).limit == summary.UNKNOWN
    failed = summary.summarize([step(1, 20, errors={"500 a": 50, "b": 1})], TTFT, 0.01)
    assert (failed.limit, failed.best) == (summary.ERRORS, None)
    assert "50 x 500 a, 1 x b" in failed.why
    assert summary.summarize([], TTFT, 0.01).best is None


@given(TIMES)
def test_a_report_is_read_as_it_was_written(times: list[float]) -> None:
    times.sort()
    written = saved(Step(3, 1.0, 50.0, tuple(times), (), tuple(times), 5, 6, {"500": 2}))
    again = report.read(report.write(written))
    assert again == written
    [before], [after] = [written.steps, report.steps_of(again)]
    assert all(a <= b + 1e-9 for a, b in zip(times, after.ttft_ms, strict=True)), "no time comes within a limit"
    assert report.step_of(before) == after
    assert "ttftMs" not in report.data_of(again)["steps"][0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"", "is no report"),
        (b"[" * 100_000, "is no report"),
        (b"{}", "missing required field `version`"),
        (report.write(saved(step(1, 1), step(1, 2))), "steps: two have the same concurrency"),
        (report.write(saved(step(1, 1), objectives={"p50": 1})), "objectives: 'p50' is none of"),
        (report.write(saved(step(1, 1))).replace(b'"pods":1', b'"pods":0'), r"`\$.pods`"),
        (report.write(saved(step(1, 1))).replace(b'"concurrency":1', b'"concurrency":-1'), r"concurrency"),
        (report.write(saved(step(1, 1))).replace(b'"version":1', b'"version":2'), "version"),
        (report.write(saved(step(1, 1))).replace(b'"ended":"', b'"ended":"\\u001b[2J'), r"`\$.ended`"),
        (report.write(saved(step(1, 1))).replace(b'"errors":{', b'"errors":{"\\u009b2J":1'), r"errors"),
        (report.write(saved(step(1, 1))).replace(b'"notes":[', b'"notes":["a\\n"'), r"`\$.notes"),
    ],
)
def test_what_is_no_report_is_refused_with_the_field(text: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        report.read(text)


# Capacity and answers


def test_a_pod_of_several_carries_its_part() -> None:
    measured = saved(step(1, 20), step(4, 60), step(8, 150), pods=2)
    found = capacity.of_report(measured, None, None, None)
    assert found.rate == pytest.approx(step(4, 60).rate / 2)
    assert found.basis == answer.MEASURED
    assert (found.prompt_tokens, found.output_tokens) == (10, 20)
    assert found.high is not None and found.low <= found.rate <= found.high


def test_other_objectives_are_computed_from_the_times() -> None:
    measured = saved(step(1, 20), step(4, 60), step(8, 150))
    assert capacity.of_report(measured, {"ttftP95": 200}, None, None).rate == step(8, 150).rate
    assert capacity.of_report(measured, {"ttftP95": 30}, None, None).rate == step(1, 20).rate
    with pytest.raises(ValueError, match="no concurrency of the report holds ttftP95=10ms"):
        capacity.of_report(measured, {"ttftP95": 10}, None, None)
    with pytest.raises(ValueError, match="no data: the report has no times of itlP95"):
        capacity.of_report(measured, {"itlP95": 10}, None, None)


def test_other_lengths_are_extrapolated_and_it_says_so() -> None:
    measured = saved(step(1, 20), step(4, 60), step(8, 150))
    alike = capacity.of_report(measured, None, lengths.parse("11"), lengths.parse("22"))
    assert alike.basis == answer.MEASURED
    longer = capacity.of_report(measured, None, None, lengths.parse("41"))
    assert longer.basis == answer.EXTRAPOLATED
    assert longer.rate == pytest.approx(alike.rate / 2), "20 + 0.1 * 10 tokens of work, and 41 + 0.1 * 10"
    assert "extrapolated by tokens from prompts of 10 and outputs of 20 tokens" in longer.notes[-1]


def learned(missed_above: float = 500.0) -> CapacityModel:
    model = CapacityModel()
    for running in (4, 8, 12, 16, 20, 24, 28, 32) * 20:
        generated = running / (0.01 + 0.0015 * running)
        pod = PodLoad(running, 0.0, generated, generated * 3, generated / 100, None)
        load = model.work(pod)
        model = model.observe([pod], 30.0, 0.5 if load > missed_above else 0.0)
    return model


def status_of(model: CapacityModel, **entry: Any) -> dict[str, Any]:
    found = model.capacity(0.05)
    assert found
    numbers = {"revision": STABLE, "perSecond": found.load, "atLeast": found.low, "basis": str(found.basis)}
    if math.isfinite(found.high):
        numbers["atMost"] = found.high
    numbers |= {"fit": fit_text.of_model(model)} | entry
    status = {"stableRevision": STABLE, "autoscaling": {"revisions": [numbers]}}
    return deployment(status, slo={"ttftP95": "800ms"})


def test_the_capacity_of_the_status_is_divided_by_the_work_of_a_request() -> None:
    model = learned()
    found = capacity.of_status(status_of(model), None, lengths.parse("300"), lengths.parse("100"))
    measured = model.capacity(0.05)
    assert measured
    assert found.rate == pytest.approx(measured.load / (100 + model.prompt_cost * 300), rel=5e-3)
    assert found.basis == answer.MEASURED and not found.notes
    other = capacity.of_status(status_of(model), None, lengths.parse("5000"), lengths.parse("100"))
    assert other.basis == answer.EXTRAPOLATED
    assert "the model saw 3 prompt tokens for each output token, and these requests have 50" in other.notes[0]


def test_objectives_that_the_status_was_not_measured_for() -> None:
    pair = lengths.parse("300"), lengths.parse("100")
    looser = capacity.of_status(status_of(learned()), {"ttftP95": 2000}, *pair)
    assert looser.basis == answer.AT_LEAST
    assert "which is stricter" in looser.notes[0]
    for wanted in ({"ttftP95": 100}, {"ttftP95": 800, "itlP95": 10}):
        with pytest.raises(ValueError, match="no data for"):
            capacity.of_status(status_of(learned()), wanted, *pair)


@pytest.mark.parametrize(
    ("obj", "sentence"),
    [
        (deployment({}, slo={"ttftP95": "1s"}), "no capacity of the revision that serves"),
        (deployment({"stableRevision": STABLE}, slo={"ttftP95": "1s"}), "no capacity of the revision that serves"),
        (deployment({"stableRevision": STABLE}), "spec.slo has no latency"),
        (status_of(learned(), perSecond=None), "is unknown yet"),
        (status_of(learned(), perSecond="nan"), "is unknown yet"),
        (status_of(learned()), "write --prompt-tokens and --output-tokens"),
    ],
)
def test_without_data_there_is_no_answer(obj: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        capacity.of_status(obj, None, None, None)


def test_a_fit_that_others_wrote_is_no_fit() -> None:
    pair = lengths.parse("300"), lengths.parse("100")
    found = capacity.of_status(status_of(learned(), fit="1 2 nonsense"), None, *pair)
    assert "is not fitted yet" in found.notes[0]


CAPACITIES = st.builds(
    lambda rate, low, high: PodCapacity(
        "bench", "Measured", rate, low * rate, None if high is None else high * rate, 100.0, 50.0, "ttftP95", ""
    ),
    st.floats(1e-3, 1e5),
    st.floats(0, 1),
    st.none() | st.floats(1, 10),
)


@given(CAPACITIES, st.floats(1e-3, 1e5), st.integers(10, 100), st.integers(0, 5), st.floats(0.01, 100))
def test_pods_carry_the_rate_and_one_less_does_not(
    each: PodCapacity, rate: float, percent: int, spare: int, price: float
) -> None:
    demand = Demand(rate, percent / 100, spare)
    try:
        found = answer.answer(each, demand, 2, price)
    except ValueError as error:
        assert rate > each.rate * demand.utilization * answer.MOST_PODS, error
        return
    needed = found.pods - spare
    usable = each.rate * demand.utilization
    assert needed * usable >= rate * (1 - 1e-6)
    assert needed == 1 or (needed - 1) * usable < rate * (1 + 1e-6)
    assert found.fewest <= found.pods <= (found.most or found.pods)
    assert found.gpus == 2 * found.pods
    assert found.cost and found.cost.hour == pytest.approx(found.pods * price)
    assert found.cost.month == pytest.approx(730 * found.cost.hour)
    tokens_an_hour = rate * 3600 * 150
    assert found.cost.million_tokens == pytest.approx(found.cost.hour / tokens_an_hour * 1e6)


# The commands


def run(*arguments: object) -> Any:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    path.write_bytes(report.write(saved(step(1, 20), step(4, 60), step(8, 150))))
    return path


def test_size_prices_gpus_as_plan_does(file: Path, tmp_path: Path) -> None:
    prices = tmp_path / "plan.yaml"
    prices.write_text("gpuTypes: [{name: h100, memoryGb: 80, pricePerHour: 4, available: 8}]\nmodels: []\n")
    found = run("size", "--from", file, "--rate", 100, "--prices", prices, "--gpus", 2, "--memory-gb", 140)
    assert found.exit_code == 0, found.stderr
    assert "pods: 4 " in found.stdout and "accelerators: 8 x h100" in found.stdout
    assert "cost: 32.00 an hour, 23360 a month" in found.stdout
    short = run("size", "--from", file, "--rate", 200, "--prices", prices, "--gpus", 2)
    assert short.exit_code == 1
    assert "14 GPUs of type h100 are needed, and there are 8" in str(short.exception)
    large = run("size", "--from", file, "--rate", 1, "--prices", prices, "--memory-gb", 81)
    assert "memory limits: a pod needs 81 GB, and 1 x h100 have 80 GB" in str(large.exception)
    other = run("size", "--from", file, "--rate", 1, "--prices", prices, "--gpu", "l4")
    assert "gpuTypes has no l4" in str(other.exception)


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("--rate", 1), 2, "give --model NAME, or --from FILE"),
        (("--from", "absent.json", "--rate", 1), 1, "absent.json cannot be read"),
        (("--from", "absent.json", "--rate", 0), 2, "is not in the range"),
        (("--from", "absent.json", "--rate", "nan"), 2, "nan is not in the range"),
    ],
)
def test_size_names_what_it_lacks(arguments: tuple[object, ...], code: int, sentence: str) -> None:
    found = run("size", *arguments)
    assert found.exit_code == code
    assert sentence in found.stderr + str(found.exception)


def test_a_deployment_in_a_rollout_or_without_objectives_is_not_measured() -> None:
    class Cluster:
        def __init__(self, obj: dict[str, Any]) -> None:
            self.obj = obj

        def deployment(self, name: str) -> dict[str, Any]:
            return self.obj

    options: dict[str, Any] = {"model": None, "slo": None, "pods": None, "during_rollout": False}
    serving = [{"revision": STABLE, "ready": 3, "weight": 100}, {"revision": "b", "ready": 5, "weight": 0}]
    quiet = deployment({"revisions": serving}, slo={"ttftP95": "1s"})
    subject = commands._subject(Cluster(quiet), "chat", options, False)  # type: ignore[arg-type]
    assert (subject.model, subject.pods, subject.objectives) == ("demo/chat", 3, {"ttftP95": 1000})
    moving = deployment({"rollout": {"state": "Paused"}}, slo={"ttftP95": "1s"})
    with pytest.raises(commands.CommandError, match="chat is in a rollout"):
        commands._subject(Cluster(moving), "chat", options, False)  # type: ignore[arg-type]
    allowed = options | {"during_rollout": True}
    assert commands._subject(Cluster(moving), "chat", allowed, False).pods == 1  # type: ignore[arg-type]
    with pytest.raises(commands.click.UsageError, match=r"has no latency in spec\.slo"):
        commands._subject(Cluster(deployment({})), "chat", options, False)  # type: ignore[arg-type]


def test_the_table_has_a_row_for_each_step() -> None:
    heading, *rows = views.step_table([step(8, 150), step(1, 20, count=40), Step(2, 1.0, 0.0)], TTFT, 0.01)
    assert heading.split()[:3] == ["IN", "PROGRESS", "RATE"]
    assert [row.split()[0] for row in rows] == ["1", "2", "8"]
    assert rows[0].endswith("Holds, not sure") and rows[2].endswith("Missed")
    assert rows[1].split()[2:8] == ["-"] * 6


# Costs

PAGE = """# HELP slipway_cost_per_hour Cost
slipway_cost_per_hour{name="chat",namespace="demo",revision="a"} 6.0
slipway_cost_per_hour{name="idle",namespace="demo",revision="b"} 0.0
slipway_cost_per_hour{name="odd",namespace="demo",revision="c"} NaN
slipway_pod_info{name="chat",namespace="demo",pod="p1",revision="a"} 1.0
slipway_pod_info{name="chat",namespace="demo",pod="p2",revision="a"} 1.0
slipway_pod_info{name="odd",namespace="demo",pod="p3",revision="c"} 1.0
"""


def pod(revision: str, since: str, **more: Any) -> dict[str, Any]:
    labels = {"slipway.dev/modeldeployment": "chat", "slipway.dev/revision": revision}
    metadata = {"namespace": "demo", "name": "p", "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
    conditions = [{"type": "PodScheduled", "lastTransitionTime": since}]
    return {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"conditions": conditions}} | more


NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_prices_are_those_of_the_operators_page() -> None:
    assert costs.prices_of(PAGE) == {("demo", "chat", "a"): 3.0}
    assert costs.prices_of("<html>") == {}


def test_costs_of_pods_by_what_they_served() -> None:
    pods = [
        pod("a", "2026-01-01T02:00:00Z"),
        pod("a", "2026-01-01T11:00:00Z"),
        pod("a", "2026-01-01T11:00:00Z", spec={}),
        pod("a", "2026-01-01T11:00:00Z", status={"phase": "Failed"}),
        pod("new", "2026-01-01T11:30:00Z"),
    ]
    row = {"model": "chat", "revision": "a", "requests": 500, "input_tokens": 3_000_000, "output_tokens": 1_000_000}
    names = costs.names_of([deployment({"model": "chat"})])
    rows = [row, row | {"model": "demo/chat"}, row | {"model": "other"}, row | {"revision": "gone"}]
    start_s = NOW.timestamp() - 4 * 3600
    served = costs.served_of(rows, names)
    first, gone, new = costs.costs_of(pods, costs.prices_of(PAGE), served, start_s, NOW)
    assert (first.pods, first.pod_hours, first.per_hour, first.cost) == (2, 5.0, 6.0, 15.0), "4 hours and 1"
    assert first.served == costs.Served(1000, 6_000_000, 2_000_000)
    assert first.per_million_tokens == pytest.approx(15 / 8)
    assert first.per_million_output_tokens == pytest.approx(7.5)
    assert first.per_thousand_requests == pytest.approx(15)
    assert (gone.revision, gone.pods, gone.cost, gone.per_million_tokens) == ("gone", 0, None, None)
    assert (new.cost, new.served) == (None, costs.Served())
    assert costs.total([first, gone]) == 15
    assert costs.total([first, gone, new]) is None
    assert cost_views.cost_table([first])[-1] == "sum: 15.00"
    assert "a revision without a price" in cost_views.remarks([new], [])[0]


@pytest.mark.parametrize(
    ("field", "value"), [("model", []), ("revision", None), ("requests", "5"), ("input_tokens", 1.5)]
)
def test_a_row_of_another_form_is_an_error_with_its_field(field: str, value: object) -> None:
    row = {"model": "chat", "revision": "a", "requests": 5, "input_tokens": 3, "output_tokens": 1}
    with pytest.raises(ValueError, match=f"no {field} that can be read"):
        costs.served_of([row | {field: value}], {"chat": ("demo", "chat")})


def test_a_short_name_is_its_owners() -> None:
    conflict = {"model": "chat", "conditions": [{"type": "NameConflict", "status": "True"}]}
    assert costs.names_of([deployment(conflict)]) == {"demo/chat": ("demo", "chat")}


@pytest.mark.parametrize(
    ("memory", "count", "fits"),
    [("80G", 1, True), ("75Gi", 1, False), ("74Gi", 2, True), ("81G", 2, False), (10**9, 1, True), ("much", 1, True)],
)
def test_size_knows_the_memory_that_a_spec_needs(tmp_path: Path, memory: object, count: int, fits: bool) -> None:
    """Of each device; what is no quantity was refused by the API server."""
    prices = tmp_path / "plan.yaml"
    prices.write_text("gpuTypes: [{name: h100, memoryGb: 80, pricePerHour: 4}]\nmodels: []\n")
    options = {"gpu": None, "gpus": None, "prices": prices, "price_hour": None, "memory_gb": None}
    spec = {"resources": {"accelerator": {"type": "h100", "count": count, "memory": memory}}}
    if fits:
        assert commands._Pods.of(spec, options).price == 4 * count
    else:
        with pytest.raises(ValueError, match="memory limits: a pod needs"):
            commands._Pods.of(spec, options)
