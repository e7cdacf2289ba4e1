"""How far apart two predictions may be that count as the same one (pure)."""

from typing import Annotated

import msgspec


class ToleranceRule(msgspec.Struct, frozen=True, rename="camel"):
    """Most that two equal numbers may differ: relative to the larger one, or absolute. Labels must be identical."""

    relative_millionths: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    absolute_billionths: Annotated[int, msgspec.Meta(ge=0)]
