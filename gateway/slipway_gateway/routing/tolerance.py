"""How far apart two predictions may be that count as the same one (pure)."""

from typing import Annotated

import msgspec


class ToleranceRule(msgspec.Struct, frozen=True, rename="camel"):
    """Of two numbers: a part of the larger one, and a difference; one of them is enough. Labels have none."""

    relative_millionths: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    absolute_billionths: Annotated[int, msgspec.Meta(ge=0)]
