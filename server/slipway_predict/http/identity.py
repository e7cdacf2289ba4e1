"""What a served model is called."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """The name and version that clients see, and the revision that is served."""

    name: str
    version: str
    revision: str = ""

    def has_version(self, version: str) -> bool:
        return version in (self.version, self.revision) and bool(version)
