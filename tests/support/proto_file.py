"""Classes of the messages of a .proto file, for tests: of the syntax that ours have, without a compiler."""

import re
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_SCALARS = {"string": 9, "bool": 8, "double": 1, "int64": 3, "uint64": 4}
_OPTIONAL, _REPEATED, _MESSAGE = 1, 3, 11
_TOKEN = re.compile(r"//[^\n]*|[A-Za-z_][\w.]*|\d+|\"[^\"]*\"|[{}=;()]")
_FIELD = re.compile(r"(optional |repeated )?(\w+) (\w+) = (\d+) ;")


def messages_of(path: Path) -> dict[str, Any]:
    """By name, the class of each message of the file."""
    words = [word for word in _TOKEN.findall(path.read_text()) if not word.startswith("//")]
    package = words[words.index("package") + 1]
    file = descriptor_pb2.FileDescriptorProto(name=path.name, package=package, syntax="proto3")
    at = 0
    while "message" in words[at:]:
        at = words.index("message", at)
        end, depth = at + 3, 1
        while depth:
            depth += {"{": 1, "}": -1}.get(words[end], 0)
            end += 1
        _add_message(file, package, words[at + 1], words[at + 3 : end - 1])
        at = end
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = message_factory.GetMessageClassesForFiles([path.name], pool)
    return {name.rpartition(".")[2]: made for name, made in found.items()}


def _add_message(file: Any, package: str, name: str, words: list[str]) -> None:
    message = file.message_type.add(name=name)
    synthetic: list[Any] = []
    parts = re.split(r"(oneof \w+ \{|\})", " ".join(words))
    index: int | None = None
    for part in parts:
        if part.startswith("oneof"):
            index = len(message.oneof_decl)
            message.oneof_decl.add(name=part.split()[1])
        elif part == "}":
            index = None
        else:
            for label, kind, field_name, number in _FIELD.findall(part):
                field = message.field.add(name=field_name, number=int(number))
                field.label = _REPEATED if label == "repeated " else _OPTIONAL
                field.type = _SCALARS.get(kind, _MESSAGE)
                if kind not in _SCALARS:
                    field.type_name = f".{package}.{kind}"
                if index is not None:
                    field.oneof_index = index
                if label == "optional ":
                    field.proto3_optional = True
                    synthetic.append(field)
    for field in synthetic:  # behind all others, as the compiler has them
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{field.name}")
