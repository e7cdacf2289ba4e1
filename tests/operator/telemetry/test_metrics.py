"""Metrics as a scraper sees them."""

from datetime import UTC, datetime

from prometheus_client.exposition import generate_latest

from slipway_contracts.route_table import Backend, Traffic
from slipway_operator.api.v1alpha1.accuracy_status import AccuracyMonitor, AccuracyStatus, RevisionAccuracy
from slipway_operator.api.v1alpha1.analysis_run import Outcome, Reason
from slipway_operator.api.v1alpha1.status import (
    AnalysisReference,
    Condition,
    ObjectiveStatus,
    Phase,
    Rollout,
    ServiceLevelStatus,
    Sleep,
    SleepState,
    State,
    Status,
    StepVerdict,
)
from slipway_operator.model.cluster.plan import Event
from slipway_operator.queue import WorkQueue
from slipway_operator.telemetry.metrics import Metrics

KEY = ("default", "chat")


def text(metrics):
    return generate_latest(metrics.registry).decode()


def test_rollouts_come_and_go():
    metrics = Metrics("1.2.3")
    traffic = Traffic(1, "chat", "s", (Backend("r2", 25), Backend("r1", 75)))
    metrics.rollouts.show(KEY, Status(phase=Phase.PAUSED, traffic=traffic))
    shown = text(metrics)
    assert 'slipway_rollout_phase{name="chat",namespace="default",phase="Paused"} 1.0' in shown
    assert 'slipway_rollout_phase{name="chat",namespace="default",phase="Healthy"} 0.0' in shown
    assert 'slipway_rollout_weight_percent{name="chat",namespace="default",revision="r2"} 25.0' in shown
    metrics.rollouts.show(KEY, Status(phase=Phase.HEALTHY))
    assert 'revision="r2"' not in text(metrics)
    metrics.rollouts.forget(KEY)
    assert 'name="chat"' not in text(metrics)


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_conditions_are_shown_while_they_report_a_problem():
    metrics = Metrics("1.2.3")
    conditions = (
        Condition("NameConflict", "True", "ModelNameTaken", "", NOW),
        Condition("TrafficSynced", "False", "Waiting", "", NOW),
        Condition("Ready", "True", "Serving", "", NOW),
        Condition("ALaterType", "Unknown", "Odd", "", NOW),
    )
    metrics.rollouts.show(KEY, Status(conditions=conditions))
    shown = [line for line in text(metrics).splitlines() if line.startswith("slipway_condition{")]
    where = 'slipway_condition{name="chat",namespace="default"'
    assert shown == [
        f'{where},reason="ModelNameTaken",status="True",type="NameConflict"}} 1.0',
        f'{where},reason="Waiting",status="False",type="TrafficSynced"}} 1.0',
        f'{where},reason="Odd",status="Unknown",type="ALaterType"}} 1.0',
    ]


def test_a_rollout_shows_its_step_and_whether_it_waits_for_a_person():
    metrics, undecided = Metrics("1.2.3"), StepVerdict(Outcome.INCONCLUSIVE, Reason.METRIC_ERROR, "", NOW)
    for state, verdict, waits in (
        (State.PAUSED, undecided, 1.0),
        (State.PAUSED, None, 1.0),
        (State.ANALYZING, undecided, 0.0),
        (State.PAUSED, StepVerdict(Outcome.PASS, Reason.METRIC_ERROR, "", NOW), 0.0),
    ):
        run = AnalysisReference("r2/1/0", "quick", verdict=verdict)
        metrics.rollouts.show(KEY, Status(rollout=Rollout(state, "r2", 1, step_started_at=NOW, analysis=run)))
        shown = text(metrics)
        labels = 'name="chat",namespace="default",revision="r2"'
        assert f"slipway_rollout_undecided{{{labels}}} {waits}" in shown
        started = "slipway_rollout_step_started_timestamp_seconds"
        found = {"name": "chat", "namespace": "default", "revision": "r2", "state": state.value}
        assert metrics.registry.get_sample_value(started, found) == NOW.timestamp()
    metrics.rollouts.show(KEY, Status(rollout=Rollout(State.PAUSED, "r2", 1)))
    assert 'slipway_rollout_undecided{name="chat",namespace="default",revision="r2"} 0.0' in text(metrics)


def test_objectives_have_their_target_and_what_is_left_of_the_budget():
    metrics = Metrics("1.2.3")
    objective = ObjectiveStatus("availability", 99.9, 1000, 2, -1.0)
    metrics.rollouts.show(KEY, Status(slo=ServiceLevelStatus(NOW, (objective,))))
    labels = 'name="chat",namespace="default",objective="availability"'
    assert f"slipway_slo_target_ratio{{{labels}}} 0.999" in text(metrics)
    assert f"slipway_slo_error_budget_left_ratio{{{labels}}} -1.0" in text(metrics)


def test_accuracy_of_the_serving_revision_is_shown_over_a_week():
    metrics = Metrics("1.2.3")
    today = f"{NOW:%Y-%m-%d}T00:00:00Z"
    one = AccuracyMonitor("Feedback", NOW, counts=(180, 20), evidence=0.25, periods=(f"{today} 90:10",))
    former = RevisionAccuracy("v0", (one,))
    watched = AccuracyStatus(NOW, (former, RevisionAccuracy("v1", (one,))))
    metrics.rollouts.show(KEY, Status(stable_revision="v1", accuracy=watched))
    labels = 'name="chat",namespace="default",revision="v1"'
    assert f"slipway_accuracy_ratio{{{labels}}} 0.9" in text(metrics)
    assert f'slipway_accuracy_evidence_ratio{{{labels},signal="Feedback"}} 0.25' in text(metrics)
    assert f'slipway_accuracy_recent_observations{{{labels},signal="Feedback"}} 100.0' in text(metrics)
    assert 'revision="v0"' not in text(metrics)


def test_budgets_of_tenants_come_and_go():
    metrics = Metrics("1.2.3")
    metrics.tenants.show({"team-a": {"day": 0.25}})
    assert 'slipway_tenant_budget_used_ratio{period="day",tenant="team-a"} 0.25' in text(metrics)
    metrics.tenants.show({})
    assert "team-a" not in text(metrics)


def test_last_wake_is_shown_for_deployments_that_slept():
    metrics = Metrics("1.2.3")
    metrics.rollouts.show(KEY, Status(sleep=Sleep(SleepState.ASLEEP, datetime(2026, 1, 1, tzinfo=UTC), (9, 7))))
    assert 'slipway_wake_seconds{name="chat",namespace="default"} 7.0' in text(metrics)
    metrics.rollouts.show(KEY, Status())
    assert "slipway_wake_seconds{" not in text(metrics)


def test_queue_is_read_when_metrics_are_scraped():
    now = [0.0]
    metrics, queue = Metrics("1.2.3"), WorkQueue(lambda: now[0])
    metrics.follow_queue(queue)
    queue.add(KEY)
    now[0] += 2.0
    shown = text(metrics)
    assert "slipway_operator_queue_depth 1.0" in shown
    assert "slipway_operator_queue_oldest_seconds 2.0" in shown
    assert "slipway_operator_queue_retries_total 0.0" in shown
    assert 'slipway_operator_build_info{version="1.2.3"} 1.0' in shown


def test_counters_have_the_documented_names():
    metrics = Metrics("1")
    metrics.reconciled("ok", 0.1)
    metrics.wrote("Service", "refused")
    metrics.event_received("pods")
    metrics.called("rollback", "refused", 0.1)
    metrics.called("event", "dropped", 0.0)
    metrics.happened([Event("Warning", "CanaryVetoed", "x"), Event("Warning", "CanaryVetoed", "y")])
    shown = text(metrics)
    for name in (
        'slipway_operator_reconcile_total{result="ok"} 1.0',
        "slipway_operator_reconcile_seconds_count 1.0",
        'slipway_operator_apply_total{kind="Service",result="refused"} 1.0',
        'slipway_operator_hook_calls_total{outcome="refused",type="rollback"} 1.0',
        'slipway_operator_hook_calls_total{outcome="dropped",type="event"} 1.0',
        'slipway_operator_events_total{reason="CanaryVetoed",type="Warning"} 2.0',
        'slipway_operator_hook_seconds_count{type="rollback"} 1.0',
        'slipway_operator_watch_last_event_timestamp_seconds{kind="pods"}',
    ):
        assert name in shown
