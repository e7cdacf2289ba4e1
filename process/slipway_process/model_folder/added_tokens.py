"""tokenizer.json with the tokens that only other files of the folder have, numbered as transformers numbers them."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec.structs import asdict, replace

from slipway_process.model_folder.tokenizer_files import AddedToken, TokenizerFiles

FILE = "tokenizer.json"
UNREADABLE = (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Entry(AddedToken, frozen=True, kw_only=True):
    id: int


class _Model(msgspec.Struct):
    vocab: msgspec.Raw = msgspec.Raw(b"{}")


class _TokenizerFile(msgspec.Struct):
    """What is read of tokenizer.json, which is long."""

    added_tokens: list[_Entry] = []
    model: _Model = msgspec.field(default_factory=_Model)


class Vocabulary:
    """Numbers by texts: those of the model, and the added ones, which go before them."""

    def __init__(self, model: dict[str, int], entries: Iterable[_Entry]) -> None:
        self._model = model
        self._next = len(model)
        self.added: dict[str, _Entry] = {}
        for entry in entries:
            self.add(entry)

    def add(self, token: AddedToken) -> None:
        """Adds a token, or changes its flags; what is special stays so.

        Its number is the next one, whatever a file has, as in the library.
        """
        if token.content:
            fields = {name: value for name, value in asdict(token).items() if name != "id"}
            fields["normalized"] = not token.special if token.normalized is None else token.normalized
            number, known = self.id_of(token.content), self.added.get(token.content)
            fields["special"] |= known is not None and known.special
            entry = _Entry(**fields, id=self._next if number is None else number)
            self.added[token.content] = entry
            self._next = max(self._next, entry.id + 1)

    def id_of(self, text: str) -> int | None:
        entry = self.added.get(text)
        return self._model.get(text) if entry is None else entry.id


def vocabulary(folder: Path, files: TokenizerFiles) -> Vocabulary:
    """The tokens of tokenizer.json and of the other files; none where tokenizer.json cannot be read."""
    try:
        return _completed(msgspec.json.decode((folder / FILE).read_bytes(), type=_TokenizerFile), files)
    except UNREADABLE:
        return Vocabulary({}, ())  # whoever loads the tokenizer gives the reason


def completed(folder: Path) -> str:
    """The text of tokenizer.json with all added tokens.

    Raises:
        BadFile: another file cannot be read.
        OSError, ValueError: tokenizer.json cannot be read.
    """
    data = (folder / FILE).read_bytes()
    files = TokenizerFiles.read(folder)
    try:
        written = msgspec.json.decode(data, type=_TokenizerFile)
        whole = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except UNREADABLE:
        return data.decode()  # as above
    entries = sorted(_completed(written, files).added.values(), key=lambda entry: entry.id)
    if entries == written.added_tokens:
        return data.decode()
    added = msgspec.Raw(msgspec.json.encode(entries))
    return msgspec.json.encode(whole | {"added_tokens": added}).decode()


def misnumbered(tokens: Vocabulary, files: TokenizerFiles) -> list[str]:
    """The listed tokens that have another number than the list gives: transformers does not keep to it either."""
    return [
        token.content for number, token in files.listed.items() if tokens.id_of(token.content) not in (None, number)
    ]


def _completed(written: _TokenizerFile, files: TokenizerFiles) -> Vocabulary:
    tokens = Vocabulary(_numbers(written.model.vocab), written.added_tokens)
    for token in _missing(files, written.added_tokens):
        tokens.add(token)
    return tokens


def _missing(files: TokenizerFiles, own: list[_Entry]) -> list[AddedToken]:
    """What transformers adds to the tokens of tokenizer.json, in its order."""
    listed: dict[int, AddedToken] = dict(files.listed)
    if not files.complete:
        listed |= {entry.id: entry for entry in own}
    tokens = [listed[number] for number in sorted(listed)]
    known = {token.content for token in (*own, *tokens)}
    tokens += [token for token in dict.fromkeys((*files.named.values(), *files.extra)) if token.content not in known]
    names = {token.content for token in files.named.values()}
    return [replace(token, special=token.special or token.content in names) for token in tokens]


def _numbers(written: msgspec.Raw) -> dict[str, int]:
    """Text → number, of a vocabulary that is an object of them or, as Unigram's, a list of pairs; empty for others."""
    try:
        found = msgspec.json.decode(written, type=dict[str, int] | list[tuple[str, float]])
    except UNREADABLE:
        return {}
    if isinstance(found, dict):
        return found
    return {text: token for token, (text, _) in enumerate(found)}
