"""The largest bodies that a gateway takes, each made to cost as much as it can: those of a server, and its own."""

from slipway_gateway.wire.request_fields import MAX_TEXTS
from tests.predict.largest_bodies import PIECES, PROTOBUF
from tests.server.largest_bodies import OF_CHATS, OF_LISTS, OF_OTHERS, OF_TEXTS

from ..support.largest import PROSE, LargeBody, field_of, filled, head_of, items_of, numbered

LIMIT_BYTES = (16 << 20) - 300
MESSAGES, INFER, V1 = "/v1/messages", "/v2/models/chat/infer", "/v1/models/chat:predict"
ANTHROPIC = {"anthropic-version": "2023-06-01"}
REPEATED = '"n":0,' * (MAX_TEXTS - 2)  # as many as a gateway reads
MESSAGE = f'{head_of({"max_tokens": 1})}"messages":[{{"role":"user","content":'
PART = '{"type":"text","text":"hi"}'
TOOL = '{"name":"f","input_schema":{"type":"object"}}'

OF_ANTHROPIC = [
    LargeBody("letters for Anthropic's API", MESSAGES, filled(f'{MESSAGE}"', "a", '"}]}'), ANTHROPIC),
    LargeBody("parts for Anthropic's API", MESSAGES, filled(f"{MESSAGE}[", PART, "]}]}", ","), ANTHROPIC),
    LargeBody("messages for Anthropic's API", MESSAGES, items_of("messages", '{"role":"user","content":"hi"}')),
    LargeBody("tools for Anthropic's API", MESSAGES, items_of("tools", TOOL, max_tokens=1, messages=[])),
    LargeBody("prose to count", f"{MESSAGES}/count_tokens", field_of("system", PROSE, messages=[])),
]
OF_TGI = [
    LargeBody("prose in TGI's shape", "/generate", filled('{"inputs":"', PROSE, '"}')),
    LargeBody("stops in TGI's shape", "/generate", filled('{"inputs":"a","parameters":{"stop":[', '"a"', "]}}", ",")),
    LargeBody(
        "numbers in TGI's shape",
        "/generate",
        filled('{"inputs":"a","parameters":{"grammar":{"type":"json","value":{"enum":[', "0", "]}}}}", ","),
    ),
    LargeBody("a repeated name in TGI's shape", "/generate", filled("{", '"inputs":0', "}", ",")),
]
OF_FIELDS = [
    *(LargeBody(f"n of {name}", "/v1/completions", items_of("n", piece)) for name, piece in PIECES.items()),
    *(LargeBody(f"a name of {name}", "/v1/completions", filled('{"model":[', piece, "]}", ","))
      for name, piece in PIECES.items()),
    LargeBody("keys", "/v1/completions", numbered("", '"x{}":1')),
    LargeBody("a repeated name", "/v1/completions", filled("{", '"n":0', "}", ",")),
    LargeBody("a repeated name, many numbers", "/v1/completions", filled(f'{{{REPEATED}"x":[', "0", "]}", ",")),
    LargeBody("a repeated name with escapes", "/v1/completions", filled("{", '"n":"\\\\\\\\"', "}", ",")),
    LargeBody("a long name", "/v1/completions", filled('{"model":"', "a", '"}')),
]  # fmt: skip
OF_CLASSIC = [
    *(LargeBody(f"inputs of {name}", INFER, filled('{"inputs":[', piece, "]}", ",")) for name, piece in PIECES.items()),
    *(LargeBody(f"instances of {name}", V1, filled('{"instances":[', piece, "]}", ","))
      for name, piece in PIECES.items()),
    *(LargeBody(f"rows of {name}", "/api/v1/predict", items_of("inputs", piece)) for name, piece in PIECES.items()),
    LargeBody("rows of a name", "/api/v1/models/chat/predict", filled('{"inputs":[', "[1,1,1,1]", "]}", ",")),
    LargeBody("fields of a message", INFER, lambda size_bytes: b"\x48\x01" * (size_bytes // 2), PROTOBUF),
    LargeBody("documents to rank", "/v1/rerank", items_of("documents", '"a"', query="a")),
    LargeBody("texts to score", "/v1/score", items_of("text_2", '"a"', text_1="a")),
    LargeBody("texts to classify", "/classify", items_of("input", '"a"')),
    LargeBody("feedback", "/v1/feedback", items_of("labels", '"a"')),
]  # fmt: skip
LARGEST = [*OF_TEXTS, *OF_LISTS, *OF_CHATS, *OF_OTHERS, *OF_ANTHROPIC, *OF_TGI, *OF_FIELDS, *OF_CLASSIC]
