"""The largest bodies that the jobs process takes, each made to cost as much as it can."""

import json
from collections.abc import Callable

from ..support.largest import MODEL, PROSE, LargeBody, field_of, filled, head_of, items_of, numbered

LIMIT_BYTES = (8 << 20) - 300
LINE_BYTES = 4 << 20  # of a file, and of the body of a job
BATCH_BYTES = 1 << 20
BATCHES, JOBS, INPUTS, FILES = "/v1/batches", "/v1/jobs", "/api/v1/batch", "/v1/files"
PIECES = {"lists": "[]", "objects": '{"":0}', "numbers": "1", "fractions": "0.5", "texts": '"ab"'}
BATCH = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "input_file_id": "file-1"}
_BOUNDARY = "boundary"


def shorter(make: Callable[[int], bytes], most_bytes: int = LINE_BYTES) -> Callable[[int], bytes]:
    return lambda size_bytes: make(min(size_bytes, most_bytes - 300))


def file_of(line: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """A form with a file of as many such lines of the largest size as fit, and at least one of a smaller size."""

    def make(size_bytes: int) -> bytes:
        head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{_BOUNDARY}\r\n'
        head += 'Content-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
        each = line(LINE_BYTES - 300)
        lines = b"\n".join([each] * max(1, (size_bytes - 1000) // (len(each) + 1)))
        return head.encode() + lines + f"\r\n--{_BOUNDARY}--\r\n".encode()

    return make


def _line(piece: str) -> Callable[[int], bytes]:
    whole = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}
    return filled(f'{json.dumps(whole)[:-1]},"body":{{"model":"{MODEL}","x":[', piece, "]}}", ",")


FORM = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
_OF_BATCHES = {f"metadata of {name}": items_of("metadata", piece, **BATCH) for name, piece in PIECES.items()} | {
    "names in metadata": numbered("metadata", '"x{}":"a"', **BATCH),
    "unknown fields": numbered("", '"x{}":1', **BATCH),
    "a long endpoint": field_of("endpoint", "a"),
    "no JSON": filled("", "[", ""),
}
OF_BATCHES = [LargeBody(name, BATCHES, shorter(make, BATCH_BYTES)) for name, make in _OF_BATCHES.items()]
OF_JOBS = [
    *(LargeBody(f"a job of {name}", JOBS, shorter(filled(
        f'{{"endpoint":"/v1/chat/completions","body":{{"model":"{MODEL}","x":[', piece, "]}}", ",")))
      for name, piece in PIECES.items()),
    LargeBody("a job of prose", JOBS, shorter(filled(
        f'{{"endpoint":"/v1/completions","body":{{"model":"{MODEL}","prompt":"', PROSE, '"}}'))),
    *(LargeBody(f"inputs of {name}", INPUTS, items_of("inputs", piece)) for name, piece in PIECES.items()),
    LargeBody("long inputs", INPUTS, filled(f'{head_of({})}"inputs":[', f'"{160 * "a"}"', "]}", ",")),
]  # fmt: skip
OF_FILES = [
    *(LargeBody(f"a file of {name}", FILES, file_of(_line(piece)), FORM) for name, piece in PIECES.items()),
    LargeBody("a file without line breaks", FILES, file_of(lambda size: b"[" * size), FORM),
]
SHORT_LINES = LargeBody("a file of short lines", FILES, file_of(lambda _: b"{}\n" * 1000), FORM)
LARGEST = [*OF_BATCHES, *OF_JOBS, *OF_FILES]
