"""Texts from other programs, made safe for a status, an Event or a message."""


def printable(text: str) -> str:
    """Return the text on one line: control characters, which could control a terminal, become spaces."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)
