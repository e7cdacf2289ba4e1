"""Types of settings: which values are valid, and what help calls them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field


@dataclass(frozen=True, slots=True)
class Flag:
    """What the command line shows of a field. Of several in an `Annotated` type the last one counts."""

    metavar: str  # "": the field has no flag
    bare: str | None = None  # the value when the flag is given without one
    repeated: bool = False  # the flag may be repeated: its value is a list


class Variable:
    """The environment variables of a field, the first that is set counts; without a name the field has none."""

    def __init__(self, *names: str) -> None:
        self.names = names


def split_items(text: Any) -> Any:
    """The items of a text with commas; anything else unchanged."""
    if not isinstance(text, str):
        return text
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _lower(text: Any) -> Any:
    return text.lower() if isinstance(text, str) else text


def _written_path(text: Any) -> Any:
    # Path("") is the working directory, which no user means.
    if text == "":
        raise ValueError("name a path")
    return text


def _absent(text: Any) -> Any:
    return None if text == "" else text


def _device(text: str) -> str:
    if text in ("auto", "cpu", "cuda") or (text.startswith("cuda:") and text[5:].isdigit()):
        return text
    raise ValueError(f"{text!r} is not auto, cpu, cuda or cuda:N")


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False), Flag("SECONDS")]
Count = Annotated[int, Field(ge=0), Flag("N")]
PositiveCount = Annotated[int, Field(ge=1), Flag("N")]
Bytes = Annotated[int, Field(ge=0), Flag("BYTES")]
Port = Annotated[int, Field(ge=0, le=65535), Flag("PORT")]
Percentage = Annotated[int, Field(ge=0, le=100), Flag("PERCENT")]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), Flag("SHARE")]
Name = Annotated[str, Flag("NAME")]
Address = Annotated[str, Flag("ADDRESS")]
FilePath = Annotated[str, Flag("FILE")]
Folder = Annotated[Path, BeforeValidator(_written_path), Flag("DIR")]
OptionalFile = Annotated[Path | None, BeforeValidator(_absent), Flag("FILE")]
Names = Annotated[tuple[str, ...], BeforeValidator(split_items), Flag("NAME,...")]
OnOff = Annotated[bool, Flag("on|off")]
Switch = Annotated[bool, Flag("on|off", bare="on")]
Device = Annotated[str, AfterValidator(_device), Flag("DEVICE")]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower), Flag("LEVEL")]
