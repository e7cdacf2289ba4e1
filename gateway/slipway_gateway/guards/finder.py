"""Looks at texts for patterns, personal data and JSON, in a process: `python -m slipway_gateway.guards.finder`.

It reads calls from stdin and writes results to stdout, each as a length of four bytes and JSON, and ends with stdin.
The gateway's event loop must not wait for this: Presidio's expressions have no bound on their time. So the gateway ends
a process that takes too long, and starts another one.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, BinaryIO

import msgspec

from . import schemas

MAX_MESSAGE_BYTES = 16 << 20
MOST_FOUND = 4096  # spans of a text
_MAX_PATTERN_BYTES = 4 << 20  # of memory for one expression
RE2, PRESIDIO = "google-re2", "presidio-analyzer"
_MODULES = {RE2: "re2", PRESIDIO: "presidio_analyzer"}

Found = list[tuple[int, int]]


class Look(msgspec.Struct):
    """A call: what to look for in which texts, or the JSON schema that they must fit, alone.

    Without texts it only loads what that takes.
    """

    patterns: list[str] = []
    entities: list[str] = []
    min_score: float = 0.0
    language: str = "en"
    texts: list[str] = []
    schema: str = ""


class Result(msgspec.Struct):
    """Spans of each text, or why there are none. `misfits`: of each text, why it does not fit the schema, or nothing.

    `unusable`: why nothing can be checked by the schema.
    """

    found: list[Found] = []
    problem: str = ""
    misfits: list[str] = []
    unusable: str = ""


class Unusable(Exception):
    """What was to be looked for cannot be. The message says why."""


def missing(package: str) -> bool:
    """Whether a package is not installed. Nothing is imported for this."""
    return importlib.util.find_spec(_MODULES[package]) is None


def look(call: Look) -> Result:
    """Looks for everything in all texts."""
    if call.schema:
        return _compared(call)
    try:
        finders = [_pattern(pattern) for pattern in call.patterns]
        if call.entities:
            finders.append(_entities(tuple(call.entities), call.min_score, call.language))
        return Result([_spans(finders, text) for text in call.texts])
    except Unusable as error:
        return Result(problem=str(error))


def _compared(call: Look) -> Result:
    """Compares texts with a schema."""
    if schemas.missing() or missing(RE2):
        return Result(problem=f"{schemas.JSONSCHEMA if schemas.missing() else RE2} is not installed")
    try:
        return Result(misfits=schemas.problems(call.schema, call.texts))
    except schemas.UnusableSchema as error:
        return Result(unusable=str(error))


def _spans(finders: list[Callable[[str], Iterator[tuple[int, int]]]], text: str) -> Found:
    found = []
    for finder in finders:
        for start, end in finder(text):
            if start < end:  # an expression may fit no character
                found.append((start, end))
            if len(found) > MOST_FOUND:
                raise Unusable(f"more than {MOST_FOUND} places of a text fit")
    return found


@lru_cache(256)
def _pattern(pattern: str) -> Callable[[str], Iterator[tuple[int, int]]]:
    if missing(RE2):
        raise Unusable(f"{RE2} is not installed")
    import re2

    options = re2.Options()
    options.max_mem, options.log_errors = _MAX_PATTERN_BYTES, False
    try:
        compiled = re2.compile(pattern, options=options)
    except re2.error:
        raise Unusable(f"the pattern {pattern[:64]} is no expression of RE2") from None
    return lambda text: (match.span() for match in compiled.finditer(text))


def _entities(entities: tuple[str, ...], min_score: float, language: str) -> Callable[[str], Iterator[tuple[int, int]]]:
    analyzer = _analyzer(language)
    if unknown := sorted(set(entities) - set(analyzer.get_supported_entities(language))):
        raise Unusable(f"Presidio has no entity {unknown[0]} here")

    def find(text: str) -> Iterator[tuple[int, int]]:
        results = analyzer.analyze(text, language=language, entities=list(entities), score_threshold=min_score)
        return ((result.start, result.end) for result in results)

    return find


@lru_cache(8)
def _analyzer(language: str) -> Any:
    """Presidio's analyzer. Names of people and places need a model of spaCy; without one it has what patterns find."""
    if missing(PRESIDIO):
        raise Unusable(f"{PRESIDIO} is not installed")
    import spacy
    import tldextract
    from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
    from presidio_analyzer.nlp_engine import SpacyNlpEngine

    # It would download the list of public suffixes: the one in the package serves.
    tldextract.tldextract.TLD_EXTRACTOR = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
    installed = sorted(name for name in spacy.util.get_installed_models() if name.startswith(f"{language}_core"))
    name = installed[0] if installed else "blank"

    class Engine(SpacyNlpEngine):
        """Loads an installed model or none; Presidio's own engine would download one."""

        def load(self) -> None:
            self.nlp = {language: spacy.load(name) if installed else spacy.blank(language)}  # type: ignore[assignment]

    engine = Engine(models=[{"lang_code": language, "model_name": name}])
    engine.load()
    registry = RecognizerRegistry(supported_languages=[language])
    registry.load_predefined_recognizers(languages=[language], nlp_engine=engine)
    return AnalyzerEngine(registry=registry, nlp_engine=engine, supported_languages=[language])


def serve(calls: BinaryIO, results: BinaryIO) -> None:
    """Answers calls until there are no more."""
    decoder = msgspec.json.Decoder(Look)
    while (message := read_message(calls)) is not None:
        try:
            result = look(decoder.decode(message))
        except Exception as error:
            result = Result(problem=f"it failed: {type(error).__name__}")
        write_message(results, msgspec.json.encode(result))


def read_message(stream: BinaryIO) -> bytes | None:
    """The next message; None at the end."""
    head = stream.read(4)
    size = int.from_bytes(head)
    if len(head) < 4 or size > MAX_MESSAGE_BYTES:
        return None
    message = stream.read(size)
    return message if len(message) == size else None


def write_message(stream: BinaryIO, message: bytes) -> None:
    stream.write(len(message).to_bytes(4) + message)
    stream.flush()


def main() -> None:
    calls, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # What a library prints must not be read as a result.
    os.dup2(2, 1)
    serve(calls, results)


if __name__ == "__main__":
    main()
