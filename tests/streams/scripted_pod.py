"""A pod in a process of its own, to be killed: `python -m tests.streams.scripted_pod PORT PAUSE_S`, without torch."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process

from tests.server.http.inprocess import InProcess, model_of

TOKENS = tuple(range(5, 45))


class SpawnedPod:
    """One such process, always at the same port."""

    def __init__(self, port: int, pause_s: float) -> None:
        self.url, self._port, self._pause_s = f"http://127.0.0.1:{port}", port, pause_s
        self._process: Process | None = None

    async def start(self) -> None:
        command = (sys.executable, "-m", "tests.streams.scripted_pod", str(self._port), str(self._pause_s))
        self._process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
        assert self._process.stdout
        async with asyncio.timeout(120):
            assert await self._process.stdout.readline() == b"ready\n"

    async def kill(self) -> None:
        if self._process and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


async def main(port: int, pause_s: float) -> None:
    async with InProcess(model_of(), replay_s=60, port=port) as pod:
        pod.engine.tokens, pod.engine.pause_s = TOKENS, pause_s
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
