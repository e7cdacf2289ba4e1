"""What is installed: the image slipway-server-predict is for classic models, and has neither torch nor transformers."""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

LANGUAGE = ("torch", "transformers", "tokenizers", "safetensors", "jinja2", "llguidance")  # packages of language models


def absent(packages: tuple[str, ...] = LANGUAGE) -> tuple[str, ...]:
    """The packages that this interpreter does not find; none of them is imported."""
    return tuple(name for name in packages if importlib.util.find_spec(name) is None)


def needs_torch(what: str, extras: str, reason: str) -> str:
    """The sentence for a model that this installation cannot serve; `extras` of slipway has what it needs."""
    return (
        f"{what} needs torch and transformers, which are not installed here ({reason}): use the image slipway-server, "
        f"by spec.engine.image or the chart's server.image; elsewhere install slipway[{extras}]."
    )


class AbsentPackage:
    """A finder of imports that fails those of one package, as where it is not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == self._name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def hide(name: str) -> None:
    """From now on this process cannot import the package."""
    sys.meta_path.insert(0, AbsentPackage(name))
