"""Twenty fetchers on three nodes: three downloads."""

from pathlib import Path

import pytest

from tests.fetcher.cache.pods import models, offer_model, start, weights_requests
from tests.fetcher.site import Site

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_twenty_pods_on_three_nodes_make_three_downloads(site: Site, tmp_path: Path) -> None:
    offer_model(site)
    nodes = [tmp_path / f"node{number}" for number in range(3)]
    pods = [start(site, tmp_path / f"pod{number}", nodes[number % 3]) for number in range(20)]
    assert [pod.wait(240) for pod in pods] == [0] * 20
    assert weights_requests(site) == 3
    assert [len(models(node)) for node in nodes] == [1, 1, 1]
    reports = [(tmp_path / f"pod{number}" / "words").read_text() for number in range(20)]
    assert sum('"cached": true' in report for report in reports) == 17
