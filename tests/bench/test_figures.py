"""Quantiles, rates, goodput, and what is counted of answers that were cut off or counted wrongly."""

import asyncio
import math

import pytest

from bench.engine.figures import Objective, figures, goodput, mean_gap_s, middle, ratio
from bench.engine.load import Run, Target, closed_loop
from bench.engine.measure import order
from bench.engine.workload import closed

from .seen import answer


def test_figures_of_nothing_are_not_numbers() -> None:
    assert math.isnan(middle([]))
    assert math.isnan(ratio(1.0, math.nan))
    assert math.isnan(ratio(math.nan, 1.0))


def test_figures_of_two_answers() -> None:
    run = Run([answer(1.0, 1.1, 1.3), answer(2.5, 2.6, 2.7, began_s=0.5)], 4.0, False)
    seen = figures(run)
    assert (seen["output_tokens"], seen["output_tokens_per_s"], seen["total_tokens_per_s"]) == (6, 1.5, 6.5)
    assert (seen["ttft_p50_s"], seen["ttft_p99_s"]) == (1.0, 2.0)
    assert (seen["itl_p50_ms"], seen["itl_p99_ms"]) == (100.0, 200.0)
    assert (seen["requests"], seen["gaps"], seen["miscounts"], seen["errors"]) == (2, 4, [], 0)


def test_of_an_answer_that_was_cut_off_only_what_came_counts() -> None:
    late = answer(1.0, 2.0, usage={"prompt_tokens": 10, "completion_tokens": 64}, error="cut off")
    silent = answer(error="cut off", usage=None)
    seen = figures(Run([late, silent], 10.0, True))
    assert (seen["output_tokens"], seen["total_tokens_per_s"], seen["cut"]) == (2, 1.2, True)
    assert (seen["errors"], seen["miscounts"]) == (0, [])


def test_failed_requests_are_errors_and_wrong_counts_are_reported() -> None:
    failed = answer(error="status 500: no")
    longer = answer(1.0, 2.0, usage={"prompt_tokens": 11, "completion_tokens": 3})
    seen = figures(Run([failed, longer], 10.0, False))
    assert (seen["errors"], seen["first_error"]) == (1, "status 500: no")
    assert seen["miscounts"] == ["11 prompt tokens for 10", "3 output tokens for 2"]


def test_several_tokens_in_one_event_are_reported() -> None:
    together = answer(1.0, 2.0, usage={"prompt_tokens": 10, "completion_tokens": 2})
    together.token_times_s.pop()
    assert figures(Run([together], 1.0, False))["miscounts"] == ["1 events for 2 tokens"]


def test_sampled_tokens_may_share_an_event() -> None:
    together = answer(1.0, 2.0, usage={"prompt_tokens": 10, "completion_tokens": 2})
    together.token_times_s.pop()
    assert figures(Run([together], 1.0, False), sampled=True)["miscounts"] == []
    shorter = answer(1.0, 2.0, usage={"prompt_tokens": 10, "completion_tokens": 1})
    assert figures(Run([shorter], 1.0, False), sampled=True)["miscounts"] == ["1 output tokens for 2"]


def test_goodput_counts_whole_answers_that_met_both_objectives() -> None:
    promise = Objective(ttft_s=1.0, token_s=0.2)
    good, late, slow = answer(0.9, 1.1, 1.3), answer(1.1, 1.2), answer(0.5, 0.6, 1.2)
    failed, single = answer(0.5, 0.6, error="gone"), answer(1.0)
    result = goodput(Run([good, late, slow, failed, single], 8.0, False), promise)
    assert result == {"good": 2, "good_share": 0.4, "goodput_per_s": 0.25}
    assert mean_gap_s(slow) == pytest.approx(0.35)
    assert mean_gap_s(single) == 0.0


def test_an_answer_without_any_token_is_not_good() -> None:
    assert not Objective().met(answer(error="cut off"))


def test_rounds_turn_the_order_round() -> None:
    assert [order(["a", "b", "c"], number) for number in (1, 2, 3)] == [
        ["a", "b", "c"],
        ["c", "b", "a"],
        ["a", "b", "c"],
    ]


async def test_a_server_that_is_not_there_is_an_error_of_each_request_and_no_crash() -> None:
    run = await closed_loop(Target("http://127.0.0.1:1", "m", {}), closed(3, "x"), 2, 10.0)
    assert len(run.answers) == 3
    assert all(answer.error for answer in run.answers)
    assert figures(run)["errors"] == 3


async def test_a_server_that_never_answers_is_cut_off_at_the_limit() -> None:
    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        ended.set()

    ended = asyncio.Event()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        run = await closed_loop(Target(url, "m", {}), closed(3, "x"), 2, 0.2)
        await ended.wait()
    assert run.cut
    assert [answer.error for answer in run.answers] == ["cut off", "cut off"]
