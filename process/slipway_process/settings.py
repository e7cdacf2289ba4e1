"""Flags, environment variables, help and errors of a process, all from the fields of one settings class."""

import argparse
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal, NoReturn, Self, TypeVar, get_args, get_origin

from pydantic import Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from slipway_process.values import Flag, LogLevel, Variable

T = TypeVar("T")
_SHOWN_CHARACTERS = 100  # of a value that is wrong
_RULES = {
    "missing": "is required",
    "int_parsing": "is not a whole number",
    "float_parsing": "is not a number",
    "finite_number": "is not a finite number",
    "bool_parsing": "is neither on nor off",
    "literal_error": "is not one of {expected}",
    "greater_than": "is not more than {gt:g}",
    "greater_than_equal": "is less than {ge:g}",
    "less_than_equal": "is more than {le:g}",
}


class _EnvironmentSource(PydanticBaseSettingsSource):
    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The first value of the field's variables that is not empty; "" if all are, where an empty value counts."""
        texts = [os.environ[name] for name in variables(self.settings_cls, field_name) if name in os.environ]
        empty = "" if texts and not self.config.get("env_ignore_empty") else None
        return next(filter(None, texts), empty), field_name, False

    def __call__(self) -> dict[str, Any]:
        """The values of all fields that a variable sets."""
        values = {name: self.get_field_value(field, name)[0] for name, field in self.settings_cls.model_fields.items()}
        return {name: value for name, value in values.items() if value is not None}


class ProcessSettings(BaseSettings):
    """Base of a process's settings: `drain_timeout_s` is `--drain-timeout` and PREFIX_DRAIN_TIMEOUT.

    A flag precedes a variable, a variable the default. `model_config` names the program (`cli_prog_name`), the
    prefix of its variables (`env_prefix`), and whether an empty variable counts as absent (`env_ignore_empty`).
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid")
    seconds: ClassVar[str] = ""  # what flags have in place of the `_s` of a field
    parser: ClassVar[type[argparse.ArgumentParser]] = argparse.ArgumentParser

    log_level: LogLevel = Field("info", description="lowest level that the log has")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The sources, first one first: flags (as init settings), then environment variables."""
        return init_settings, _EnvironmentSource(settings_cls)

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Self:
        """The settings by these arguments and the environment.

        Raises:
            SystemExit: 0 after --help; 2 with one sentence about all invalid values.
        """
        parser = cls.parser(cls.model_config.get("cli_prog_name"), allow_abbrev=False)
        parser.description = cls.__doc__
        parser.epilog = f"Each flag can be set in the environment: --log-level is {variables(cls, 'log_level')[0]}."
        add_flags(parser, cls)
        return read(cls, vars(parser.parse_args(arguments)), parser.error)


S = TypeVar("S", bound=ProcessSettings)


def read(settings: type[S], given: Mapping[str, Any], refuse: Callable[[str], NoReturn]) -> S:
    """The settings by these values of flags and the environment; `refuse` gets one sentence about all problems."""
    try:
        return settings(**given)
    except ValidationError as error:
        problems = [_problem(settings, given, one) for one in error.errors(include_url=False)]
    refuse("; ".join(problems))


def add_flags(
    parser: argparse.ArgumentParser, settings: type[ProcessSettings], *, shown: Collection[str] | None = None
) -> None:
    """Add the flags of all fields; help shows all, or those of `shown`. Values stay text, and absent when not given."""
    for name, field in settings.model_fields.items():
        flag = _find(field, Flag, Flag("TEXT"))
        if not flag.metavar:
            continue
        options: dict[str, Any] = {"action": "append"} if flag.repeated else {}
        if flag.bare is not None:
            options = {"nargs": "?", "const": flag.bare}
        parser.add_argument(
            flag_name(settings, name),
            dest=name,
            default=argparse.SUPPRESS,
            metavar=value_name(field),
            help=argparse.SUPPRESS
            if shown is not None and name not in shown
            else _help(settings, field).replace("%", "%%"),
            **options,
        )


def flag_name(settings: type[ProcessSettings], field_name: str) -> str:
    """The flag of a field, "" where it has none."""
    if not _find(settings.model_fields[field_name], Flag, Flag("TEXT")).metavar:
        return ""
    return "--" + _plain(settings, field_name).replace("_", "-")


def variables(settings: type[BaseSettings], field_name: str) -> tuple[str, ...]:
    """The environment variables of a field, the first that is set counts."""
    prefixed = Variable(settings.model_config.get("env_prefix", "") + _plain(settings, field_name).upper())
    return _find(settings.model_fields[field_name], Variable, prefixed).names


def shown_default(field: FieldInfo) -> str:
    """The default as a user writes it; "" where there is none, or where the description has it."""
    if field.is_required() or field.default_factory:
        return ""
    default = field.get_default()
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    if isinstance(default, float) and default.is_integer():
        return str(int(default))
    return "" if default is None else str(default)


def value_name(field: FieldInfo) -> str:
    """The value's name in help: all values of a Literal, with `|` between them, else a word such as SECONDS."""
    few = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return "|".join(few) or _find(field, Flag, Flag("TEXT")).metavar


def _plain(settings: type[BaseSettings], field_name: str) -> str:
    if not field_name.endswith("_s"):
        return field_name
    return field_name.removesuffix("_s") + getattr(settings, "seconds", "")


def _find(field: FieldInfo, kind: type[T], otherwise: T) -> T:
    return next((item for item in reversed(field.metadata) if isinstance(item, kind)), otherwise)


def _help(settings: type[ProcessSettings], field: FieldInfo) -> str:
    default = shown_default(field)
    return f"{field.description} (default: {default})" if default else str(field.description)


def _problem(settings: type[ProcessSettings], given: Mapping[str, Any], error: ErrorDetails) -> str:
    name = str(error["loc"][0])
    flag, present = flag_name(settings, name), [one for one in variables(settings, name) if one in os.environ]
    place = flag if name in given or not present else present[0]
    if error["type"] == "value_error":
        return f"{place}: {error['ctx']['error']}"
    rule = _RULES.get(error["type"], error["msg"]).format(**error.get("ctx", {}))
    if error["type"] == "missing":
        return f"{' or '.join(filter(None, (flag, *variables(settings, name))))} {rule}"
    if settings.model_fields[name].annotation is SecretStr:
        return f"{place}: the value {rule}"
    return f"{place}: {str(error['input'])[:_SHOWN_CHARACTERS]!r} {rule}"
