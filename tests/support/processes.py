"""A real operator and a real gateway for a test."""

import pytest

from testkit.world.rights import limited_kubeconfig
from testkit.world.slipway import Cluster


@pytest.fixture
def operator_flags():
    """Flags of the operator of `cluster`, beside the usual ones; a module overrides this fixture."""
    return ()


@pytest.fixture
async def cluster(client, namespace, api_server, tmp_path, operator_flags):
    """An operator with the rights that its documentation lists, and a gateway, in the namespace of the test."""
    limited = await limited_kubeconfig(client, namespace, api_server, tmp_path)
    made = Cluster(client, namespace, api_server, limited, tmp_path, operator_flags=operator_flags)
    async with made.running():
        yield made
