"""Runs the steps of a load test, one after the other, within its bounds."""

import asyncio
import time
from collections.abc import Callable

from slipway_cli.bench.load import Load, Send
from slipway_cli.sizing.objectives import Objectives
from slipway_cli.sizing.search import SETTLE_SHARE, Plan, following, quota
from slipway_cli.sizing.steps import Step, outcome

COMPLETE, ERRORS, BOUNDS = "Complete", "Errors", "Bounds"
BUSY = 0.9  # share of a processor, from which this program itself may be what is slow


async def run(
    send: Send, plan: Plan, objectives: Objectives, most_errors: float, steps: list[Step], show: Callable[[Step], None]
) -> tuple[str, bool]:
    """Append each step to `steps` when it has ended, so what is there is there after an interruption too.

    Returns why it ended, and whether this program had no processor time to spare in a step.
    """
    deadline, is_busy = time.monotonic() + plan.max_seconds, False
    async with asyncio.TaskGroup() as group:
        load = Load(group, send, plan.max_requests, deadline)
        try:
            while True:
                tried = [(step.concurrency, outcome(step, objectives, most_errors)) for step in steps]
                concurrency = following(plan, tried)
                if concurrency is None:
                    return COMPLETE, is_busy
                if load.is_over:
                    return BOUNDS, is_busy
                most = quota(plan, load.sent, len(steps))
                began, used = time.monotonic(), time.process_time()
                settle_most = max(concurrency, int(SETTLE_SHARE * most))
                step = await load.step(concurrency, plan.settle_s, plan.step_s, most, settle_most, most_errors)
                is_busy |= time.process_time() - used > BUSY * (time.monotonic() - began)
                steps.append(step)
                show(step)
                if step.failed and step.error_share > most_errors:
                    return ERRORS, is_busy
        finally:
            load.stop()
