"""A gateway in a process of its own, to be killed: `python -m tests.gateway.spawned CONFIG`, and how it is started."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipway_gateway.identity.tenants import KnownTenant

from . import tenants
from .grpc_gateway import grpc_gateway
from .harness import Gateway, gateway

ROUTED = "chat"


@dataclass
class SpawnedGateway:
    """`tenants`: name → key → its weight. `settings`: of the gateway."""

    folder: Path
    name: str
    upstreams: list[str]
    tenants: dict[str, tuple[list[str], int]]
    settings: dict[str, Any] = field(default_factory=dict)
    url: str = ""
    started_s: float = 0.0
    process: asyncio.subprocess.Process | None = None

    @property
    def _marks(self) -> Path:
        return self.folder / f"{self.name}.flushed"

    async def start(self) -> None:
        self._marks.unlink(missing_ok=True)
        config = {"upstreams": self.upstreams, "tenants": self.tenants, "settings": self.settings}
        path = self.folder / f"{self.name}.json"
        path.write_text(json.dumps(config | {"marks": str(self._marks)}))
        with (self.folder / f"{self.name}.log").open("ab") as log:
            command = [sys.executable, "-m", "tests.gateway.spawned", str(path)]
            self.process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=log)
        assert self.process.stdout
        async with asyncio.timeout(120):
            self.url = (await self.process.stdout.readline()).decode().strip()
        self.started_s = time.monotonic()
        assert self.url, (self.folder / f"{self.name}.log").read_text()[-2000:]

    async def kill(self) -> None:
        if self.process and self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
            await self.process.wait()

    def flushed_s(self) -> float:
        """When its last write to the ledger began that the database took, by the clock of all processes; else 0."""
        return float(self._marks.read_text() or 0) if self._marks.exists() else 0.0


@contextlib.asynccontextmanager
async def opened(listed: list[KnownTenant], settings: dict[str, Any]) -> AsyncIterator[Gateway]:
    """The gateway, with a gRPC port where the settings have one."""
    if "grpc_port" in settings:
        async with grpc_gateway(listed, tenants.PEPPER, auth_mode="required", **settings) as made:
            yield made.gate
        return
    async with gateway(listed, tenants.PEPPER, auth_mode="required", **settings) as edge:
        yield edge


async def main(config: dict[str, Any]) -> None:
    listed = [
        KnownTenant(name, weight=weight, keys=tuple(map(tenants.entry, keys)))
        for name, (keys, weight) in config["tenants"].items()
    ]
    marks = os.open(config["marks"], os.O_WRONLY | os.O_CREAT)
    async with opened(listed, config["settings"]) as edge:
        edge.route(("r1", 100, config["upstreams"]), model=ROUTED)
        flush = edge.ledger.flush

        async def marked() -> bool:
            began_s = time.monotonic()
            done = await flush()
            if done:
                os.pwrite(marks, b"%020.6f" % began_s, 0)
            return done

        edge.ledger.flush = marked  # type: ignore[method-assign]
        print(edge.url, flush=True)
        await edge.ledger.run()


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
