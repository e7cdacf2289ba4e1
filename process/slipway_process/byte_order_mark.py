"""The mark before UTF-8 that editors and spreadsheets of Windows write. JSON has none, and readers may skip it."""

import codecs
from typing import TypeVar

Data = TypeVar("Data", bytes, bytearray)


def without_mark(data: Data) -> Data:
    return data.removeprefix(codecs.BOM_UTF8)
