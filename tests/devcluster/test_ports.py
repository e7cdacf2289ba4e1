"""Ports that are reserved."""

import socket
import subprocess
import sys

import pytest

from devcluster import ports
from devcluster.errors import DevclusterError

# Runs in a network namespace of its own: a rule for port 21000 whose target does not exist.
_WITH_A_RULE_OF_A_DEAD_CLUSTER = """
ip link set lo up
iptables -t nat -A OUTPUT -p tcp -d 127.0.0.1 --dport 21000 -j DNAT --to-destination 127.0.0.1:1 && echo ruled || exit
exec {python} -c "from devcluster import ports; print(ports.free_port_near(21000), ports.is_free(21000))"
"""
PROGRAM = "from devcluster import ports; print(ports.reserve_port(), flush=True); input()"


def test_a_reserved_port_is_free_and_given_once() -> None:
    given = [ports.reserve_port() for _ in range(50)]
    assert len(set(given)) == 50 and all(port in ports.RESERVABLE for port in given)
    with socket.create_server(("", given[0])):
        pass


def test_a_port_in_use_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        used = taken.getsockname()[1]
        monkeypatch.setattr(ports, "RESERVABLE", range(used, used + 1))
        with pytest.raises(DevclusterError, match="No free port"):
            ports.reserve_port()


def test_another_process_gets_other_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run in several processes, each of which starts programs."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout and other.stdin
        theirs = int(other.stdout.readline())
        monkeypatch.setattr(ports, "RESERVABLE", range(theirs, theirs + 1))
        with pytest.raises(DevclusterError, match="No free port"):
            ports.reserve_port()
        other.communicate("\n")
    assert ports.reserve_port() == theirs


def test_a_taken_port_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert ports.free_port_near(port) > port


def test_a_port_that_a_firewall_rule_takes_is_passed_over() -> None:
    script = _WITH_A_RULE_OF_A_DEAD_CLUSTER.format(python=sys.executable)
    inside = subprocess.run(
        ["env", "unshare", "--user", "--map-root-user", "--net", "sh", "-c", script], capture_output=True, text=True
    )
    if not inside.stdout.startswith("ruled"):
        pytest.skip(f"NOT RUN, no firewall rule can be made here: {inside.stderr.strip()}")
    assert inside.stdout.split() == ["ruled", "21001", "False"], inside.stderr
