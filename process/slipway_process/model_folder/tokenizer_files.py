"""What a model folder has beside tokenizer.json: names of special tokens, added tokens and chat templates.

Sources and their precedence are those of transformers: tokenizer_config.json; special_tokens_map.json and
added_tokens.json where the former lists no added tokens; chat_template.jinja and additional_chat_templates/ in place of
the templates in tokenizer_config.json.
"""

import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from slipway_process.model_folder.json_files import JSON_LIMIT_BYTES, BadFile, optional_object

CONFIG, NAMES, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
TEMPLATE, TEMPLATES = "chat_template.jinja", "additional_chat_templates"
LISTED, EXTRA, OLD_EXTRA = "added_tokens_decoder", "extra_special_tokens", "additional_special_tokens"
STANDARD = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
DEFAULT, FOR_TOOLS = "default", "tool_use"
_NUMBER = re.compile(r"[0-9]{1,10}")

Object = Mapping[str, Any]


class AddedToken(msgspec.Struct, frozen=True):
    """A token with its flags, as tokenizer.json has it. `normalized`: None for its default, which `special` decides."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None
    special: bool = False


class TokenizerFiles(msgspec.Struct, frozen=True):
    """What the files have.

    `named`: the special tokens that templates know by a name. `extra`: special tokens without one. `listed`: added
    tokens by their numbers. `complete`: `listed` is from tokenizer_config.json, so that no other list counts.
    `templates`: the sources of chat templates by their names.
    """

    named: dict[str, AddedToken] = {}
    extra: list[AddedToken] = []
    listed: dict[int, AddedToken] = {}
    complete: bool = False
    templates: dict[str, str] = {}

    @classmethod
    def read(cls, folder: Path) -> "TokenizerFiles":
        """Raises BadFile for what cannot be read."""
        config = optional_object(folder / CONFIG)
        complete = config.get(LISTED) is not None
        names = {} if complete else optional_object(folder / NAMES)
        named, extra = _named(config, names), _extra(config, names)
        special = {token.content for token in (*named.values(), *extra)}
        listed = _listed(config[LISTED]) if complete else _added(optional_object(folder / ADDED), special)
        return cls(named, extra, listed, complete, _templates(folder, config))

    @property
    def texts(self) -> dict[str, str]:
        """The special tokens as the variables of templates."""
        return {name: token.content for name, token in self.named.items()}


def _named(config: Object, names: Object) -> dict[str, AddedToken]:
    """The standard names first, in the order in which transformers adds their tokens. `names`: special_tokens_map.json.

    The latter goes before for standard names, tokenizer_config.json for others, `extra_special_tokens` before both.
    """
    named: dict[str, AddedToken | None] = dict.fromkeys(STANDARD)
    for file, values in ((CONFIG, config), (NAMES, names)):
        for name in values.keys() & set(STANDARD):
            named[name] = None if values[name] is None else _token(values[name], name, file)
    for file, values in ((NAMES, names), (CONFIG, config)):
        # Others that end so may be flags, as add_bos_token.
        own = {
            name: value for name, value in values.items() if name.endswith("_token") and isinstance(value, str | dict)
        }
        named |= {name: _token(value, name, file) for name, value in own.items() if name not in STANDARD}
    for file, values in ((CONFIG, config), (NAMES, names)):
        extra = values.get(EXTRA)
        for name, value in extra.items() if isinstance(extra, dict) else ():
            named[name] = _token(value, f"{EXTRA}.{name}", file)
    return {name: token for name, token in named.items() if token is not None}


def _extra(config: Object, names: Object) -> list[AddedToken]:
    """`extra_special_tokens` of both files or, where there is none, `additional_special_tokens`, its old name."""
    new, old = _tokens(config, EXTRA, CONFIG), _tokens(config, OLD_EXTRA, CONFIG)
    if not config.get(EXTRA):
        new, old = (new if old is None else old), None
    if EXTRA in names:
        more = _tokens(names, EXTRA, NAMES)
        new = None if more is None else [*(new or []), *more]
    if OLD_EXTRA in names:
        old = _tokens(names, OLD_EXTRA, NAMES)
    return (old if new is None else new) or []


def _tokens(values: Object, name: str, file: str) -> list[AddedToken] | None:
    """None without such a list: in place of one there may be an object, of tokens with names."""
    written = values.get(name, {})
    if isinstance(written, dict):
        return None
    if not isinstance(written, list | None):
        raise BadFile(f"{name} of {file} must be a list or an object, not {_shown(written)}.")
    return [_token(value, name, file) for value in written or ()]


def _listed(written: Any) -> dict[int, AddedToken]:
    if not isinstance(written, dict) or not all(map(_NUMBER.fullmatch, written)):
        raise BadFile(f"{LISTED} of {CONFIG} must be an object of tokens by their numbers.")
    if strange := next((value for value in written.values() if not isinstance(value, dict)), None):
        raise BadFile(f"{LISTED} of {CONFIG} has {_shown(strange)}, which is no token with its flags.")
    return {int(number): _token(value, f"{LISTED}.{number}", CONFIG) for number, value in written.items()}


def _added(written: Object, special: set[str]) -> dict[int, AddedToken]:
    for text, number in written.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise BadFile(f"{ADDED} has {_shown(number)} for the token {_shown(text)}: it must be a number.")
    return {number: AddedToken(text, special=text in special) for text, number in written.items()}


def _token(value: Any, name: str, file: str) -> AddedToken:
    """A token, which is written as its text or as an object with its flags."""
    if isinstance(value, str):
        return AddedToken(value, special=True)
    try:
        return msgspec.convert(value, AddedToken)
    except msgspec.ValidationError as error:
        raise BadFile(f"{name} of {file} is {_shown(value)}, which is no token: {error}.") from None


def _templates(folder: Path, config: Object) -> dict[str, str]:
    files = {path.name.removesuffix(".jinja"): path for path in sorted((folder / TEMPLATES).glob("*.jinja"))}
    if (folder / TEMPLATE).is_file():
        files = {DEFAULT: folder / TEMPLATE} | files
    if files:
        return {name: _source(path) for name, path in files.items() if name in (DEFAULT, FOR_TOOLS)}
    written = config.get("chat_template")
    if written is None:
        return {}
    if isinstance(written, str):
        return {DEFAULT: written}
    if isinstance(written, list) and all(isinstance(entry, dict) for entry in written):
        pairs = [(entry.get("name"), entry.get("template")) for entry in written]
    elif isinstance(written, dict):
        pairs = list(written.items())
    else:
        pairs = [(None, None)]
    if not all(isinstance(name, str) and isinstance(source, str) for name, source in pairs):
        raise BadFile(f"chat_template of {CONFIG} must be a text, or a list of objects with a name and a template.")
    return dict(pairs)


def _source(path: Path) -> str:
    try:
        if (size := path.stat().st_size) > JSON_LIMIT_BYTES:
            raise ValueError(f"it has {size} bytes, the limit is {JSON_LIMIT_BYTES}")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadFile(f"The chat template {path.name} cannot be read: {error}.") from None


def _shown(value: Any) -> str:
    return reprlib.repr(value)[:64]  # which stops at a depth
