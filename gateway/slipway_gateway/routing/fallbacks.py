"""What answers in place of a deployment that cannot: another one, or the API of another provider (pure)."""

from typing import NamedTuple

from slipway_contracts.resilience import ExternalTarget


class Fallback(NamedTuple):
    """`name`: `namespace/name` of a deployment; of a provider, that of its owner with a slash and its own name.

    `external`: None of a deployment.
    """

    name: str
    external: ExternalTarget | None = None

    @property
    def namespace(self) -> str:
        """Whose Secret has a provider's key."""
        return self.name.partition("/")[0]
