"""What the lock file installs for an extra."""

import tomllib

from testkit import ROOT


def locked(extra: str) -> set[str]:
    """The names of the packages that the extra installs, with all that they depend on."""
    packages = {one["name"]: one for one in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    found: set[str] = set()
    wanted = [one["name"] for one in packages["slipway"]["optional-dependencies"][extra]]
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            wanted += [one["name"] for one in packages[name].get("dependencies", ())]
    return found
