"""Texts of others on their way into a status, an Event or a message."""


def printable(text: str) -> str:
    """The text on one line: control characters, with which a terminal could be steered, are spaces."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)
