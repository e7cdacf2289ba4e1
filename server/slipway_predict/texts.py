"""Texts of a request to a classifier of texts: what is refused, and which rows are computed together (pure)."""

from collections.abc import Sequence

MAX_TOKENS = 8192  # of a row, for a model that would take more
MAX_TEXT_BYTES = 128 << 10
BATCH_TOKENS = 2048  # of the rows of one batch, as `estimated_tokens` counts, and of what is computed at once
MAX_PADDING = 0.5  # share of padding in a row that is computed with longer ones
_BYTES_PER_TOKEN = 4  # of English; other texts have up to four times as many tokens


def refusal(text: str) -> str:
    """Why a text is refused, as the end of a sentence; empty for one that is taken."""
    if not text.strip():
        return "is empty"
    if "\0" in text:
        return "has a character NUL"
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "has half of a surrogate pair, which is no Unicode character"
    return f"has {size} bytes; {MAX_TEXT_BYTES} is the limit" if size > MAX_TEXT_BYTES else ""


def estimated_tokens(size_bytes: int, max_tokens: int) -> int:
    """Tokens of a row with that many bytes of text, before it is tokenized."""
    return min(max_tokens, size_bytes // _BYTES_PER_TOKEN + 4)


def groups(lengths: Sequence[int], *, even: bool) -> list[list[int]]:
    """Rows that are computed together, by their indices. Each row has its tokens, and is padded to the longest one.

    Args:
        lengths: tokens of each row.
        even: rows of one length alone share a group, for a model that does not ignore padding.
    """
    found: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if found:
            longest = lengths[found[-1][0]]
            fits = (len(found[-1]) + 1) * longest <= BATCH_TOKENS
            near = lengths[index] == longest if even else lengths[index] >= longest * (1 - MAX_PADDING)
            if fits and near:
                found[-1].append(index)
                continue
        found.append([index])
    return found


def kept_tokens(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of the two texts of a row are kept: of the longer one as many are cut as needed, then of both.

    Equal to the strategy `longest_first` of Hugging Face's tokenizers.
    """
    if first + second <= room:
        return first, second
    short = min(first, second)
    long = short if short > room else max(short, room - short)
    if short + long > room:
        short = room // 2
        long = short + room % 2
    return (long, short) if first > second else (short, long)
