"""Images for tests: sound ones of every mode, and hostile ones."""

import functools
import io
import struct
import zipfile
import zlib
from typing import Any

import numpy
from PIL import Image

LABELS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def noise(height: int, width: int, seed: int = 1) -> Image.Image:
    return Image.fromarray(numpy.random.default_rng(seed).integers(0, 256, (height, width, 3), numpy.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **more: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **more)
    return file.getvalue()


def digit(index: int, side: int = 40) -> Image.Image:
    """One of the digits that scikit-learn ships, larger than the model takes it."""
    from sklearn.datasets import load_digits

    rows, _ = load_digits(return_X_y=True)
    small = (rows[index].reshape(8, 8) * (255 / 16)).astype(numpy.uint8)
    return Image.fromarray(small).resize((side, side), Image.Resampling.BOX)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, rows: bytes, *, bits: int = 8, color: int = 2, more: bytes = b"") -> bytes:
    """A PNG as its header says, whatever is in its rows."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + more + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("run.sh", "echo")
    return file.getvalue()


def jpeg_of_size(width: int, height: int) -> bytes:
    """A sound JPEG whose header claims another size."""
    data = bytearray(encoded(noise(8, 8), "JPEG"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


@functools.cache
def hostile() -> dict[str, tuple[bytes, str]]:
    """By name: a content, and what the refusal says of it."""
    sound, jpeg = encoded(noise(30, 30)), encoded(noise(30, 30), "JPEG")
    frames = [noise(8, 8, seed) for seed in (1, 2, 3)]
    text = chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(100_000_000)))
    return {
        "nothing": (b"", "neither JPEG nor PNG"),
        "a text": (b"not an image at all", "neither JPEG nor PNG"),
        "a truncated PNG": (sound[: len(sound) // 2], "ends before its last chunk|is not whole"),
        "a truncated JPEG": (jpeg[: len(jpeg) // 2], "cannot be decoded"),
        "a header alone": (sound[:33], "header that is damaged"),
        "the first bytes of a JPEG": (b"\xff\xd8\xff\xe0", "header that is damaged"),
        "a bomb": (png(60_000, 60_000, bytes(1000)), "60000 x 60000 pixels"),
        "a JPEG bomb": (jpeg_of_size(65_500, 65_500), "65500 x 65500 pixels"),
        "a bomb of metadata": (png(8, 8, bytes(200), more=text), "cannot be decoded"),
        "no width": (png(0, 8, bytes(200)), "header that is damaged|has the size"),
        "no height": (png(8, 0, b""), "header that is damaged|has the size"),
        "too few rows": (png(8, 8, bytes(10)), "cannot be decoded"),
        "a damaged checksum": (
            sound[:40] + bytes([sound[40] ^ 1]) + sound[41:],
            "header that is damaged|cannot be decoded",
        ),
        "an animated PNG": (encoded(frames[0], save_all=True, append_images=frames[1:]), "is animated, with 3 frames"),
        "a GIF": (encoded(noise(8, 8), "GIF"), "neither JPEG nor PNG"),
        "a WebP": (encoded(noise(8, 8), "WEBP"), "neither JPEG nor PNG"),
        "a TIFF": (encoded(noise(8, 8), "TIFF"), "neither JPEG nor PNG"),
        "a GIF that is a JPEG too": (b"GIF89a" + jpeg, "neither JPEG nor PNG"),
        "a PDF that is a PNG too": (b"%PDF-1.7\n" + sound, "neither JPEG nor PNG"),
        "a PNG that is an archive too": (sound + archive(), "bytes behind its end"),
    }
