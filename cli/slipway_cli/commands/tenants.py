"""Commands about Tenants, their API keys and their usage. A key is shown once; a Tenant has only its hash."""

import base64
import binascii
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import click

from slipway_cli.api import TENANT_RESOURCE
from slipway_cli.cluster import ledgers
from slipway_cli.cluster.client import ClusterClient
from slipway_cli.commands.options import Duration, output_option, print_data, with_cluster
from slipway_cli.errors import CommandError, Conflict
from slipway_cli.objects import api_keys, tenant, usage
from slipway_cli.objects.tenant import Keys
from slipway_cli.views import table

GATEWAYS = "slipway-system"
PEPPER = "slipway-system/slipway-key-pepper"
ATTEMPTS = 5  # to change a Tenant that others change too

tenant_argument = click.argument("name", metavar="TENANT")
key_argument = click.argument("key_id", metavar="ID")


def pepper_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option --pepper: the Secret of the release for which a key is made."""
    text = f"NAMESPACE/NAME of the release's Secret with the pepper; default is {PEPPER}."
    return click.option("--pepper", default=PEPPER, metavar="NAMESPACE/NAME", help=text)(command)


def expiry_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option --expires-in: when a new key expires."""
    text = "Time until the new key expires, for example 90d; without it the key is valid until it is revoked."
    return click.option("--expires-in", type=Duration(), help=text)(command)


@click.command("tenants")
@click.argument("name", required=False)
@output_option("table", "json", "yaml")
@with_cluster
def tenants(cluster: ClusterClient, name: str | None, output: str) -> None:
    """List Tenants, or show one, with all columns of `kubectl get tenants`."""
    if output != "table":
        print_data(cluster.tenant(name) if name else cluster.tenants(), output)
        return
    lines = table.format_server_table(cluster.tenant_table(name), with_namespace=False)
    click.echo("\n".join(lines)) if lines else click.echo("No resources found.", err=True)


class Groups(click.ParamType[tuple[str, ...]]):
    """Names of columns, separated by commas."""

    name = "column,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The columns that a text names; a usage error if one is unknown."""
        if isinstance(value, tuple):
            return value
        chosen = tuple(dict.fromkeys(part.strip() for part in str(value).split(",")))
        if unknown := [part for part in chosen if part not in usage.GROUPS]:
            self.fail(f"{unknown[0]!r} is none of {', '.join(usage.GROUPS)}", param, ctx)
        return chosen


@click.command("usage")
@click.argument("name", metavar="[TENANT]", required=False)
@click.option("--since", type=Duration(), default="24h", help="How far back, in whole hours of UTC; default is 24h.")
@click.option(
    "--by",
    type=Groups(),
    default="tenant",
    help=f"Columns that make a row: {', '.join(usage.GROUPS)}, several with commas; default is tenant.",
)
@click.option(
    "--gateways",
    default=GATEWAYS,
    metavar="NAMESPACE",
    help=f"Namespace of the release's gateways, which have the ledger; default is {GATEWAYS}.",
)
@output_option("table", "csv", "json")
@with_cluster
def usage_(
    cluster: ClusterClient, name: str | None, since: float, by: tuple[str, ...], gateways: str, output: str
) -> None:
    """Show what one tenant or all of them used: requests, tokens and cost, added up over all gateways."""
    cluster.version()  # its response sets the clock of `cluster.now()`
    read = ledgers.rows(cluster, gateways, usage.hours(cluster.now(), since), name or "")
    found = usage.add_up(read, by)
    if output == "json":
        print_data(found, output)
    elif output == "csv":
        click.echo(usage.to_csv(found, by), nl=False)
    elif found:
        columns = (*by, *usage.COUNTS, usage.COST)
        click.echo("\n".join(table.format_table(columns, ([row[column] for column in columns] for row in found))))
    else:
        click.echo("No usage found.", err=True)


@click.group("keys")
def keys() -> None:
    """Create, list, rotate and revoke the API keys of Tenants."""


@keys.command("create")
@tenant_argument
@expiry_option
@pepper_option
@click.option("--dry-run", is_flag=True, help="Change nothing; print the key and its entry for a manifest.")
@output_option("text", "json", "yaml")
@with_cluster
def create(
    cluster: ClusterClient, name: str, expires_in: float | None, pepper: str, dry_run: bool, output: str
) -> None:
    """Create a key of a Tenant and show it, once."""
    cluster.tenant(name)
    made = _Made(cluster, pepper, expires_in)
    if dry_run:
        print_data({"key": made.key, "entry": made.added([])[0]}, "yaml" if output == "text" else output)
        return
    _change(cluster, name, made.added)
    made.show(name, output)


@keys.command("list")
@click.argument("name", metavar="[TENANT]", required=False)
@output_option("table", "json", "yaml")
@with_cluster
def list_(cluster: ClusterClient, name: str | None, output: str) -> None:
    """List the keys of a Tenant, or of all Tenants."""
    found = [cluster.tenant(name)] if name else cluster.tenants()["items"]
    rows = [row for one in found for row in tenant.rows(one, cluster.now())]
    columns = ("tenant", "id", "state", "expires")
    if output != "table":
        print_data([dict(zip(columns, row, strict=True)) for row in rows], output)
    elif rows:
        click.echo("\n".join(table.format_table(columns, rows)))
    else:
        click.echo("No keys found.", err=True)


@keys.command("rotate")
@tenant_argument
@key_argument
@click.option(
    "--overlap", type=Duration(), default="24h", help="Time for which the old key stays valid; default is 24h."
)
@expiry_option
@pepper_option
@output_option("text", "json", "yaml")
@with_cluster
def rotate(
    cluster: ClusterClient, name: str, key_id: str, overlap: float, expires_in: float | None, pepper: str, output: str
) -> None:
    """Create the successor of a key and show it, once; the old key expires after the overlap."""
    cluster.tenant(name)
    made = _Made(cluster, pepper, expires_in)
    end = _later(cluster, overlap)
    _change(cluster, name, lambda known: made.added(tenant.expire(known, key_id, end, earlier_only=True)))
    made.show(name, output)
    click.echo(f"the key {key_id} expires at {tenant.format_time(end)} at the latest", err=True)


@keys.command("revoke")
@tenant_argument
@key_argument
@with_cluster
def revoke(cluster: ClusterClient, name: str, key_id: str) -> None:
    """Remove a key: gateways refuse it within two seconds."""
    _change(cluster, name, lambda known: tenant.without(known, key_id))
    click.echo(f"the key {key_id} of {name} is revoked")


@keys.command("expire")
@tenant_argument
@key_argument
@click.option("--in", "after", type=Duration(), default="0", help="Time until then; default is now.")
@with_cluster
def expire(cluster: ClusterClient, name: str, key_id: str, after: float) -> None:
    """Set when a key expires. It stays in the Tenant, so that its owner learns why it is refused."""
    cluster.tenant(name)
    end = _later(cluster, after)
    _change(cluster, name, lambda known: tenant.expire(known, key_id, end))
    click.echo(f"the key {key_id} of {name} expires at {tenant.format_time(end)}")


class _Made:
    """A new key, with its hash and expiry for the Tenant."""

    def __init__(self, cluster: ClusterClient, pepper: str, expires_in: float | None) -> None:
        self.key = api_keys.make_key(secrets.token_bytes(api_keys.ENTROPY_BYTES))
        self._hash = api_keys.hash_key(self.key, _read_pepper(cluster, pepper))
        self._expires = _later(cluster, expires_in) if expires_in is not None else None

    def added(self, known: Keys) -> Keys:
        """The entries in `known` and that of the new key."""
        return tenant.with_key(known, api_keys.id_of(self.key), self._hash, self._expires)

    def show(self, name: str, output: str) -> None:
        """Prints the key. It is shown only now, because nothing stores it."""
        key_id = api_keys.id_of(self.key)
        if output != "text":
            ends = {"expiresAt": tenant.format_time(self._expires)} if self._expires else {}
            print_data({"tenant": name, "id": key_id, "key": self.key, **ends}, output)
            return
        click.echo(self.key)
        click.echo(
            f"this is the key {key_id} of {name}; it is shown only now: keep it where secrets are kept", err=True
        )


def _read_pepper(cluster: ClusterClient, place: str) -> bytes:
    namespace, _, name = place.partition("/")
    secret = cluster.secret(namespace, name) if namespace and name else None
    if secret is None:
        raise CommandError(f"there is no Secret {place}: name the release's own with --pepper NAMESPACE/NAME")
    try:
        pepper = base64.urlsafe_b64decode(base64.b64decode((secret.get("data") or {}).get("pepper", "")))
    except (binascii.Error, ValueError):
        pepper = b""
    if len(pepper) < api_keys.MIN_PEPPER_BYTES:
        raise CommandError(
            f"the Secret {place} has no pepper of {api_keys.MIN_PEPPER_BYTES} bytes: is it the right one?"
        )
    return pepper


def _later(cluster: ClusterClient, seconds: float) -> datetime:
    """The time in so many seconds, by the clock of the API server: that of this machine may be wrong."""
    return cluster.now() + timedelta(seconds=seconds)


def _change(cluster: ClusterClient, name: str, decide: Callable[[Keys], Keys]) -> None:
    """Change the keys of a Tenant; if another client changed it meanwhile, decide again by the new object."""
    for _ in range(ATTEMPTS):
        found = cluster.tenant(name)
        version = found["metadata"]["resourceVersion"]
        changed = decide(tenant.keys_of(found))
        try:
            cluster.patch_tenant(name, {"metadata": {"resourceVersion": version}, "spec": {"auth": {"keys": changed}}})
        except Conflict:
            continue
        return
    raise CommandError(f"others change {TENANT_RESOURCE} {name} all the time: try again")
