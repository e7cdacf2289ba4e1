"""The table of tenants in use."""

import asyncio
from collections.abc import Callable, Collection, Iterable

from ..identity.tenants import KnownTenant, TenantTable, build


class KnownTenants:
    """Holds the table of tenants by which requests are authenticated.

    `current` is None until all Tenants were listed once. `pepper` returns the release's secret; empty: there is none.
    `as_of_s`: Unix time at which the source was last in contact with the cluster; 0: not known.
    """

    def __init__(
        self, pepper: Callable[[], bytes], on_publish: Callable[[Collection[str]], None] = lambda names: None
    ) -> None:
        """`on_publish` gets the names of the tenants of each new table."""
        self._pepper, self._on_publish = pepper, on_publish
        self._table: TenantTable | None = None
        self.trouble: Callable[[], str] = lambda: "not listed yet"  # why there is no table, or no newer one
        self.problems: dict[str, str] = {}  # by the name of a Tenant: why its last version is not used
        self.as_of_s = 0.0
        self.changed = asyncio.Event()  # set by `publish`; its waiter clears it
        self.on_change: Callable[[], None] = lambda: None  # called at once when the table is another one, or gone

    def publish(self, tenants: Iterable[KnownTenant], as_of_s: float = 0.0) -> None:
        self._table = build(tenants, self._pepper())
        self.as_of_s = as_of_s
        self.on_change()
        self._on_publish(self._table.tenants)
        self.changed.set()

    def confirm(self, as_of_s: float) -> None:
        """The source was in contact with the cluster at `as_of_s`, and the published tenants are still current."""
        self.as_of_s = as_of_s

    def forget(self) -> None:
        self._table = None
        self.on_change()

    @property
    def current(self) -> TenantTable | None:
        table = self._table
        if table is not None and (pepper := self._pepper()) != table.pepper:
            table = self._table = build(table.tenants.values(), pepper)
        return table
