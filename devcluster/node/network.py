"""Takes back the engine's network when the engine cannot: after a kill in the middle of setting it up."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from devcluster.places import Places
from devcluster.processes import run, succeeds

FIREWALLS = ("iptables", "ip6tables")
_NAMESPACES = Path("/run/netns")
_ADMIN_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
_OF_ONE_NETWORK = re.compile(r"NETAVARK-(DN-)?[0-9A-F]{13}$")


@dataclass(frozen=True, slots=True)
class Network:
    """What identifies one network of our own store on the host."""

    bridge: str
    subnets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule as iptables-save prints it."""

    table: str
    words: tuple[str, ...]  # ("-A", chain, ...)

    @property
    def chain(self) -> str:
        return self.words[1]


def own_networks(places: Places) -> list[Network]:
    """The networks that our own engine configuration made."""
    return [parse_network(path.read_text()) for path in (places.engine / "networks").glob("*.json")]


def parse_network(text: str) -> Network:
    """From podman's file about one network (pure)."""
    document = json.loads(text)
    subnets = tuple(entry["subnet"] for entry in document.get("subnets") or ())
    return Network(document["network_interface"], subnets)


def parse_rules(saved: str) -> list[Rule]:
    """The rules in the output of iptables-save (pure)."""
    rules, table = [], ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith("-A"):
            rules.append(Rule(table, tuple(shlex.split(line))))
    return rules


def parse_chains(saved: str) -> list[tuple[str, str]]:
    """(table, chain) of netavark's chains (pure)."""
    chains, table = [], ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith(":NETAVARK"):
            chains.append((table, line[1:].split()[0]))
    return chains


def chains_of(rules: list[Rule], subnets: set[str]) -> set[str]:
    """The chains that belong to these subnets and to no other network (pure)."""
    targets = {word for rule in rules if subnets & set(rule.words) for word in rule.words}
    own = {target for target in targets if _OF_ONE_NETWORK.match(target)}
    return own | {target.replace("NETAVARK-", "NETAVARK-DN-") for target in own if "-DN-" not in target}


def rules_to_delete(rules: list[Rule], subnets: set[str], chains: set[str]) -> list[Rule]:
    """Rules of these subnets, or that lead into these chains, from chains that stay (pure)."""
    return [rule for rule in rules if rule.chain not in chains and set(rule.words) & (subnets | chains)]


def shared_by_others(chains: list[tuple[str, str]]) -> bool:
    """Whether another network of any podman on this host still uses netavark's common chains (pure)."""
    return any(_OF_ONE_NETWORK.match(chain) for _, chain in chains)


def saved_rules(program: str) -> str:
    path = shutil.which(f"{program}-save", path=_ADMIN_PATH)
    return run([path]) if path and os.geteuid() == 0 else ""


def all_chains() -> list[str]:
    return [chain for program in FIREWALLS for _, chain in parse_chains(saved_rules(program))]


def any_left() -> bool:
    """Whether any podman network of this host, ours or not, still has a container."""
    return any(shared_by_others(parse_chains(saved_rules(program))) for program in FIREWALLS)


def remove_links(network: Network) -> None:
    """The bridge, what hangs on it, and the namespaces at the other ends."""
    if not Path(f"/sys/class/net/{network.bridge}").exists():
        return
    names = {entry.get("id"): entry["name"] for entry in json.loads(run(["ip", "-j", "netns", "list"]) or "[]")}
    for link in json.loads(run(["ip", "-j", "link", "show", "master", network.bridge]) or "[]"):
        succeeds(["ip", "link", "del", link["ifname"]])
        if name := names.get(link.get("link_netnsid")):
            _remove_namespace(_NAMESPACES / name)
    succeeds(["ip", "link", "del", network.bridge])


def remove_unused_namespaces() -> None:
    """Those of podman in which nothing runs: of containers that died before they had a link to our bridge."""
    inhabited = {inode for path in Path("/proc").glob("[0-9]*/ns/net") if (inode := _inode(path))}
    for path in _NAMESPACES.glob("netns-*"):  # podman's name for them
        if _inode(path) not in inhabited:
            _remove_namespace(path)


def _remove_namespace(path: Path) -> None:
    succeeds(["umount", "-l", str(path)])
    with suppress(OSError):
        path.unlink()


def _inode(path: Path) -> int:
    """0 for what went away meanwhile."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def remove_rules(networks: list[Network], chains_before: set[str]) -> None:
    """The networks' own chains always; netavark's common ones when no network needs them and they were not there."""
    subnets = {subnet for network in networks for subnet in network.subnets}
    for program in FIREWALLS:
        rules = parse_rules(saved_rules(program))
        own = chains_of(rules, subnets)
        _delete(program, rules_to_delete(rules, subnets, own), own)
        chains = parse_chains(saved_rules(program))
        if not shared_by_others(chains):
            common = {chain for _, chain in chains} - chains_before
            _delete(program, rules_to_delete(parse_rules(saved_rules(program)), set(), common), common)


def _delete(program: str, rules: list[Rule], chains: set[str]) -> None:
    for rule in rules:
        succeeds([program, "-t", rule.table, "-D", *rule.words[1:]])
    found = [(table, chain) for table, chain in parse_chains(saved_rules(program)) if chain in chains]
    for action in ("-F", "-X"):  # all are emptied before the first is deleted: they lead into one another
        for table, chain in found:
            succeeds([program, "-t", table, action, chain])


def nft_tables() -> list[str]:
    """'family name' of each table."""
    if not shutil.which("nft", path=_ADMIN_PATH) or os.geteuid() != 0:
        return []
    return [line.removeprefix("table ").strip() for line in run(["nft", "list", "tables"]).splitlines()]


def remove_empty_tables(before: set[str]) -> None:
    """iptables makes a table for its first rule and never removes it."""
    for name in set(nft_tables()) - before:
        if name.split()[-1] in ("nat", "filter", "mangle", "raw") and not _has_rules(name):
            succeeds(["nft", "delete", "table", *name.split()])


def _has_rules(table: str) -> bool:
    frame = ("table", "chain", "type", "}", "#")
    lines = (line.strip() for line in run(["nft", "list", "table", *table.split()]).splitlines())
    return any(line and not line.startswith(frame) for line in lines)
