"""Which engine is used, and with which configuration."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from devcluster.engine.choice import Facts, Install, Missing, Use, choose, needs_own_configuration
from devcluster.engine.engine import containers_conf, storage_conf
from devcluster.places import Places

NOTHING = Facts(
    docker_installed=False, docker_answers=False, podman_installed=False, apt_get=False, root=False,
    can_raise_limits=True, systemd=True,
)  # fmt: skip
PLACES = Places(Path("/cache"), Path("/state"), "slipway")


def test_docker_comes_first_when_its_daemon_answers() -> None:
    assert choose(replace(NOTHING, docker_installed=True, docker_answers=True, podman_installed=True)) == Use("docker")


def test_a_docker_client_without_daemon_gives_way_to_podman() -> None:
    assert choose(replace(NOTHING, docker_installed=True, podman_installed=True)) == Use("podman")


def test_root_on_debian_installs_podman() -> None:
    assert choose(replace(NOTHING, apt_get=True, root=True)) == Install()


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (NOTHING, "install Docker or podman"),
        (replace(NOTHING, docker_installed=True), "daemon does not answer"),
        (replace(NOTHING, apt_get=True), "as root"),
    ],
)
def test_without_an_engine_the_message_names_what_is_missing(facts: Facts, words: str) -> None:
    choice = choose(facts)
    assert isinstance(choice, Missing) and words in choice.message


def test_own_configuration_only_where_needed() -> None:
    assert not needs_own_configuration(NOTHING)
    assert needs_own_configuration(replace(NOTHING, systemd=False))
    assert needs_own_configuration(replace(NOTHING, can_raise_limits=False))
    assert not needs_own_configuration(replace(NOTHING, systemd=False, linux=False))


def test_limits_are_named_only_where_they_cannot_be_raised() -> None:
    assert "default_ulimits" in containers_conf(PLACES, can_raise_limits=False)
    assert "default_ulimits" not in containers_conf(PLACES, can_raise_limits=True)


def test_the_own_store_lies_in_the_cache() -> None:
    assert 'graphroot = "/cache/engine/storage"' in storage_conf(PLACES, volatile=False)
    assert "additionalimagestores" not in storage_conf(PLACES, volatile=False)
    lending = replace(PLACES, lent_images=Path("/lent"))
    assert 'additionalimagestores = ["/lent"]' in storage_conf(lending, volatile=False)
    assert 'network_config_dir = "/cache/engine/networks"' in containers_conf(PLACES, can_raise_limits=True)


def test_containers_do_not_wait_for_the_disk_where_the_kernel_can_do_without() -> None:
    assert "volatile" not in storage_conf(PLACES, volatile=False)
    document = tomllib.loads(storage_conf(replace(PLACES, lent_images=Path("/lent")), volatile=True))
    assert document["storage"]["options"]["overlay"] == {"mountopt": "volatile"}
    assert document["storage"]["options"]["additionalimagestores"] == ["/lent"]
