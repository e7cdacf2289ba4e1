"""For tests that end the tasks of a process by unexpected exceptions: what was started again, a method that fails."""

import traceback
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from slipway_process.supervisor import Supervisor


class Started(Supervisor):
    """A supervisor that remembers what it started again. Put it in place of the class that a process imports."""

    made: "list[Started]" = []  # noqa: RUF012

    def __init__(self, on_restart: Callable[[str], None], *given: Any) -> None:
        self.restarts: list[str] = []
        super().__init__(lambda name: (self.restarts.append(name), on_restart(name))[0], *given)
        Started.made.append(self)

    @classmethod
    def replace(cls, monkeypatch: pytest.MonkeyPatch, *programs: Any) -> None:
        """These modules make supervisors of this kind from here on, which are in `made`."""
        for program in programs:
            monkeypatch.setattr(program, "Supervisor", cls)
        cls.made.clear()


def fail(
    monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, times: int = 1, *, name: str | None = None
) -> list[str]:
    """The first `times` calls of the method raise; returns what became of each call. `name`: of these objects alone."""
    real, calls = getattr(owner, method), list[str]()

    def called(*given: Any, **named: Any) -> Any:
        if name is None or given[0].name == name:
            calls.append("failed" if len(calls) < times else "worked")
            if calls[-1] == "failed":
                raise OverflowError("a bug")
        return real(*given, **named)

    monkeypatch.setattr(owner, method, called)
    return calls


async def page_of(port: int, path: str) -> tuple[int, str]:
    """Status and text of a page of a process on this machine."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
        return response.status, await response.text()


def reasons(log: pytest.LogCaptureFixture) -> set[str]:
    """The tasks that the log has as started again, with the exception of `fail` as the reason."""
    records = [one for one in log.records if one.msg == "the task %r ended and is started again" and one.exc_info]
    found = {str(one.args[0]): "".join(traceback.format_exception(*one.exc_info)) for one in records}  # type: ignore
    return {task for task, text in found.items() if "OverflowError: a bug" in text}
