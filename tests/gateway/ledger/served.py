"""A gateway in a process of its own, to be killed.

    python -m tests.gateway.ledger.served LEDGER_URL UPSTREAM KEY PLANE

`PLANE`: as `--plane` of the gateway.
"""

import asyncio
import sys

from tests.gateway import tenants
from tests.gateway.harness import gateway


async def main(ledger_url: str, upstream: str, key: str, plane: str) -> None:
    one = tenants.tenant("team-a", key)
    options = {
        "tenants": [one],
        "pepper": tenants.PEPPER,
        "auth_mode": "required",
        "ledger_url": ledger_url,
        "plane": plane,
    }
    async with gateway(**options) as edge:  # type: ignore[arg-type]
        edge.route(("r1", 100, [upstream]))
        writing = asyncio.create_task(edge.ledger.run())
        print(edge.url, flush=True)
        await writing


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
