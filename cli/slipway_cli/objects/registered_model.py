"""What ModelDeployments know of the models of a registry that they serve; pure. Its texts are a stranger's."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from slipway_cli.api import Json

PREFIX = "models:/"


@dataclass(frozen=True, slots=True)
class RegisteredVersion:
    """A version of a registered model that has an alias, is the newest one, or is served."""

    model: str
    version: str
    aliases: tuple[str, ...]
    newest: bool
    served: tuple[str, ...] = field(default=())  # NAMESPACE/NAME ROLE WEIGHT%


def describe(status: Json) -> tuple[str, ...]:
    """Lines about the version that a ModelDeployment follows; () where it is from no registry."""
    of = _registry(status)
    if not of:
        return ()
    lines = [f"{_text(of, 'uri')} is version {_text(of, 'version')} since {_text(of, 'since')}"]
    owner, run, dataset = (_text(of, name) for name in ("owner", "run", "dataset"))
    made = [f"owner {owner}" if owner else "", f"run {run}" if run else "", f"data set {dataset}" if dataset else ""]
    lines += ["  ".join(filter(None, made)), f"files {_text(of, 'source')}", _text(of, "description")]
    for name, title in (("metrics", "metrics"), ("tags", "tags"), ("aliases", "aliases")):
        lines.append(f"{title} {', '.join(_texts(of, name))}" if _texts(of, name) else "")
    return tuple(filter(None, lines))


def list_versions(items: Iterable[Json]) -> list[RegisteredVersion]:
    """The versions that ModelDeployments know of, by model and number."""
    aliases: dict[tuple[str, str], set[str]] = {}
    newest: dict[str, int] = {}
    served: dict[tuple[str, str], list[str]] = {}
    for obj in items:
        status = obj.get("status") or {}
        for key, text in _served(obj, status):
            served.setdefault(key, []).append(text)
        of = _registry(status)
        name = model_of(_text(of, "uri"))
        if not name:
            continue
        latest = _text(of, "latest")
        if latest.isdecimal():
            newest[name] = max(newest.get(name, 0), int(latest))
        for line in _texts(of, "aliases"):
            alias, _, version = line.rpartition("=")
            aliases.setdefault((name, version), set()).add(alias)
    known = {*aliases, *served, *((name, str(number)) for name, number in newest.items())}
    return [
        RegisteredVersion(
            name,
            version,
            tuple(sorted(aliases.get((name, version), ()))),
            version == str(newest.get(name)),
            tuple(sorted(served.get((name, version), ()))),
        )
        for name, version in sorted(known, key=lambda key: (key[0], not key[1].isdecimal(), key[1].zfill(12)))
    ]


def model_of(uri: str) -> str:
    """The name of the registered model that a URI names; empty for other URIs."""
    return uri.removeprefix(PREFIX).partition("@")[0].partition("/")[0] if uri.startswith(PREFIX) else ""


def _served(obj: Json, status: Json) -> Iterator[tuple[tuple[str, str], str]]:
    metadata = obj["metadata"]
    for item in status.get("revisions") or ():
        uri = _text(item, "registry")
        name, _, version = uri.removeprefix(PREFIX).rpartition("/")
        if uri.startswith(PREFIX) and name:
            where = f"{metadata['namespace']}/{metadata['name']}"
            yield (name, version), f"{where} {item.get('role', '')} {item.get('weight', 0)}%"


def _registry(status: Json) -> Json:
    found = status.get("registry")
    return found if isinstance(found, dict) else {}


def _text(of: Json, name: str) -> str:
    return _plain(of.get(name) or "")


def _texts(of: Json, name: str) -> list[str]:
    found = of.get(name)
    return [_plain(item) for item in found] if isinstance(found, list) else []


def _plain(value: object) -> str:
    """A text without characters that could control a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in str(value))
