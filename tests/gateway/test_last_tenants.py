"""Tenants of before a restart: used while the API server is away, for a limited time."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

from slipway_gateway.authentication import last_tenants
from slipway_gateway.authentication.known_tenants import KnownTenants
from slipway_gateway.authentication.last_tenants import LastTenants
from testkit.until import until_async

from .tenants import PEPPER, make_key, tenant

TENANT = tenant("team-a", make_key())


@contextlib.asynccontextmanager
async def keeping(folder: Path, known: KnownTenants, max_age_s: float = 60.0) -> AsyncIterator[None]:
    task = asyncio.create_task(LastTenants(str(folder), max_age_s, known).run(grace_s=0.05))
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def known() -> KnownTenants:
    return KnownTenants(lambda: PEPPER)


async def written(folder: Path, as_of_s: float) -> Path:
    before = known()
    async with keeping(folder, before):
        before.publish([TENANT], as_of_s)
        path = folder / last_tenants.FILE
        await until_async(path.exists)
    return path


async def test_tenants_are_restored_after_a_restart(tmp_path: Path) -> None:
    path = await written(tmp_path, time.time())
    assert path.stat().st_mode & 0o777 == 0o600 and PEPPER not in path.read_bytes()
    after = known()
    async with keeping(tmp_path, after):
        await until_async(lambda: after.current is not None)
        assert after.current is not None and after.current.tenants == {"team-a": TENANT}


async def test_tenants_whose_requests_have_looked_up_prices_are_kept(tmp_path: Path) -> None:
    used = tenant("team-a", make_key())
    used.policy.price_of("default/chat", "chat")
    before, after = known(), known()
    async with keeping(tmp_path, before):
        before.publish([used], time.time())
        await until_async((tmp_path / last_tenants.FILE).exists)
    async with keeping(tmp_path, after):
        await until_async(lambda: after.current is not None)
        assert after.current is not None and after.current.tenants == {"team-a": used}


async def test_tenants_that_are_too_old_are_not_restored(tmp_path: Path) -> None:
    await written(tmp_path, time.time() - 100)
    after = known()
    async with keeping(tmp_path, after):
        await asyncio.sleep(0.2)
        assert after.current is None


async def test_restored_tenants_that_get_too_old_are_dropped(tmp_path: Path) -> None:
    await written(tmp_path, time.time())
    after = known()
    async with keeping(tmp_path, after, max_age_s=5.0):  # a slow machine restores them within that
        await until_async(lambda: after.current is not None)
        await until_async(lambda: after.current is None)


async def test_a_damaged_file_is_not_used(tmp_path: Path) -> None:
    (tmp_path / last_tenants.FILE).write_text('{"tenants": 1}')
    after = known()
    async with keeping(tmp_path, after):
        await asyncio.sleep(0.2)
        assert after.current is None
