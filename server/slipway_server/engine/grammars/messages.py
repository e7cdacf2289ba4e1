"""What crosses the socket between the engine and the grammar process: one msgpack message per packet."""

from hashlib import blake2b
from typing import Final

import msgspec

from ..request import Grammar

# A SOCK_SEQPACKET socket takes packets of up to about 200 kB: the tokens of a resumed answer go in several advances.
PACKET_BYTES: Final = 192 << 10
MAX_GRAMMAR_BYTES: Final = 128 << 10  # in UTF-8: it crosses the socket in one packet
TOKENS_PER_ADVANCE: Final = 8192
SEQUENCES_PER_ADVANCE: Final = 512


class Prepare(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Engine to grammars: compile this grammar. The answer is Prepared."""

    generation: int
    digest: bytes
    kind: str
    text: str


class Advance(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of one sequence after its first `position` ones, and whether to compute the mask that follows them."""

    sequence: int
    digest: bytes
    row: int  # of the shared memory, that the mask is to be written to
    position: int
    tokens: list[int]
    mask: bool = True


class Advances(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Engine to grammars: the tokens that a step sampled. TOKENS_PER_ADVANCE and SEQUENCES_PER_ADVANCE limit them."""

    generation: int
    sequences: list[Advance]


class Drop(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Engine to grammars: these sequences are over."""

    generation: int
    sequences: list[int]


class Hello(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Grammars to engine: a new process serves, and knows nothing that its predecessor knew.

    `culprit`: the sequence whose mask the predecessor computed when it ended, -1: none; `refusal`: why this model can
    have no grammars.
    """

    generation: int
    culprit: int = -1
    refusal: str = ""
    words: int = 0  # of a mask: 32 tokens in each


class Prepared(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Grammars to engine: a grammar is compiled, or `refusal` is why it cannot be used."""

    digest: bytes
    refusal: str = ""


class Masked(msgspec.Struct, frozen=True, array_like=True):
    """The mask after `position` tokens is in its row; or `refusal` is why there is none.

    `missing`: the grammar process does not know the grammar or the earlier tokens (any more).
    """

    sequence: int
    position: int
    seconds: float = 0.0
    refusal: str = ""
    missing: bool = False


class MaskedRows(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Grammars to engine: the masks that were computed since the last MaskedRows."""

    sequences: list[Masked]


ToGrammars = Prepare | Advances | Drop
FromGrammars = Hello | Prepared | MaskedRows

to_grammars: Final[msgspec.msgpack.Decoder[ToGrammars]] = msgspec.msgpack.Decoder(ToGrammars)
from_grammars: Final[msgspec.msgpack.Decoder[FromGrammars]] = msgspec.msgpack.Decoder(FromGrammars)
encode: Final = msgspec.msgpack.Encoder().encode


def digest_of(grammar: Grammar) -> bytes:
    return blake2b(f"{grammar.kind}\0{grammar.text}".encode(), digest_size=16).digest()
