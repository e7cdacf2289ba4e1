"""Where files of a model come from, in the files that operators write for containers beside an engine."""

from typing import Annotated

from msgspec import Meta, Struct


class FetchSource(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A source of the fetcher's. `revision`: of a repository, or a digest; the others are those of object stores."""

    uri: Annotated[str, Meta(min_length=1, max_length=2048)]
    revision: Annotated[str, Meta(max_length=256)] = ""
    endpoint: Annotated[str, Meta(max_length=256)] = ""
    region: Annotated[str, Meta(max_length=64)] = ""
    account: Annotated[str, Meta(max_length=24)] = ""
