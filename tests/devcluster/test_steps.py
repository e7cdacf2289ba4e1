"""Lanes of steps: what may start, what runs beside what, and the estimate of the time left."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from devcluster.steps import progress
from devcluster.steps.progress import run_steps
from devcluster.steps.schedule import Step, about, forecast, left_of, makespan, missing, startable

WAIT_S = 20


def step(title: str, lane: str = "", after: tuple[str, ...] = (), done: bool = False) -> Step:
    return Step(title, lambda: done, lambda: None, lane=lane, after=after)


CLUSTER = [
    step("compile", "compile"),
    step("packages", "packages"),
    step("images", "packages"),
    step("node image", "node", ("compile", "packages")),
    step("load", "node", ("images",)),
    step("remove", "removal", ("compile",)),
]
SECONDS = {"compile": 100, "packages": 40, "images": 80, "node image": 30, "load": 5, "remove": 25}


def titles(steps: list[Step]) -> list[str]:
    return [one.title for one in steps]


def test_steps_without_a_lane_run_in_order() -> None:
    steps = [step("a"), step("b"), step("c")]
    assert titles(startable(steps, set(), set())) == ["a"]
    assert titles(startable(steps, set(), {"a"})) == []
    assert titles(startable(steps, {"a"}, set())) == ["b"]


def test_a_lane_waits_for_what_its_next_step_comes_after() -> None:
    assert titles(startable(CLUSTER, set(), set())) == ["compile", "packages"]
    assert titles(startable(CLUSTER, {"packages"}, {"compile", "images"})) == []
    assert titles(startable(CLUSTER, {"packages", "compile"}, {"images"})) == ["node image", "remove"]


def test_a_step_that_is_not_in_the_list_holds_up_nothing() -> None:
    assert titles(startable([step("node image", "node", ("compile",))], set(), set())) == ["node image"]


def test_a_step_of_two_parts_runs_once_and_done_steps_are_left_out() -> None:
    first, again = step("base"), step("base")
    found = missing([first, step("done", done=True), again, step("image")])
    assert titles(found) == ["base", "image"] and found[0] is first


def test_lanes_overlap_in_the_estimate() -> None:
    assert makespan(CLUSTER, SECONDS) == 135  # compile and node image; load waits for images at 120
    assert makespan(CLUSTER, {"images": 80, "load": 5}) == 85
    assert makespan(CLUSTER, {}) == 0
    assert makespan([step("a"), step("b")], {"a": 3, "b": 4}) == 7


def test_steps_that_wait_for_one_another_are_an_error() -> None:
    steps = [step("a", "x", ("b",)), step("b", "y", ("a",))]
    with pytest.raises(ValueError, match="wait for one another: a, b"):
        makespan(steps, {"a": 1, "b": 1})
    with pytest.raises(ValueError, match="wait for one another"):
        run_steps(steps, Console(file=io.StringIO()))


def test_the_estimate_follows_the_pace_of_the_machine() -> None:
    at_start = forecast(CLUSTER, SECONDS, SECONDS, 0)
    assert (at_start.share, at_start.seconds_left) == (0, 135)
    half = {title: seconds for title, seconds in SECONDS.items() if title != "packages"} | {"compile": 50}
    assert forecast(CLUSTER, SECONDS, half, 50).seconds_left == pytest.approx(85)
    late = forecast(CLUSTER, SECONDS, half, 150)
    assert late.share == pytest.approx(50 / 135) and 150 < late.seconds_left < 250


def test_progress_of_a_running_step_is_its_fraction_or_its_time() -> None:
    assert left_of(100, 80, 0.25) == 75
    assert left_of(100, 80, None) == 20
    assert left_of(100, 300, None) == 10


def test_durations_are_rounded_for_people() -> None:
    assert [about(seconds) for seconds in (3, 70, 460)] == ["less than a minute", "about 1 min", "about 8 min"]


def test_lanes_run_in_parallel_and_lines_show_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 0.01)
    met, shown = threading.Barrier(2), threading.Event()

    class Output(io.StringIO):
        def write(self, text: str) -> int:
            if "left: " in text:
                shown.set()
            return super().write(text)

    def meet() -> None:
        met.wait(WAIT_S)
        assert shown.wait(WAIT_S)

    output = Output()
    steps = [
        Step("one", lambda: False, meet, lane="a", fraction=lambda: 0.5),
        Step("two", lambda: False, meet, lane="b", note="a note"),
        step("three", "b", ("one",)),
    ]
    run_steps(steps, Console(file=output, soft_wrap=True))
    text = output.getvalue()
    assert "[2/3] two (a note) ..." in text and "[3/3] three ... 0 s" in text
    assert "% done, less than a minute left: one (50%), two (0 s)" in text


def test_an_error_ends_the_run_at_once() -> None:
    go_on = threading.Event()
    began: list[str] = []

    def fail() -> None:
        raise OSError("no space")

    steps = [
        Step("long", lambda: False, lambda: go_on.wait(WAIT_S), lane="a"),
        Step("bad", lambda: False, fail, lane="b"),
        Step("next", lambda: False, lambda: began.append("next"), lane="b"),
    ]
    with pytest.raises(OSError, match="no space"):
        run_steps(steps, Console(file=io.StringIO()))
    go_on.set()
    assert not began
