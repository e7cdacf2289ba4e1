"""A JPEG or a PNG as an upright RGB image, and every other content refused: its header is read before its pixels."""

import io
import struct
import warnings
from typing import Any

import numpy
import PIL.JpegImagePlugin
import PIL.MpoImagePlugin
import PIL.PngImagePlugin
from PIL import Image, UnidentifiedImageError

JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_FORMATS = ("JPEG", "PNG")
_CHUNK = struct.Struct(">I4s")  # of a PNG: a length and a type before the content, and a checksum behind it
_CHECKSUM_BYTES = 4
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # fmt: skip

Image.MAX_IMAGE_PIXELS = None  # it warns; `decode` refuses


class ImageError(ValueError):
    """Why content is refused as an image. The text continues a sentence that begins with "the image"."""


def decode(data: bytes, max_pixels: int) -> Image.Image:
    """An RGB image, turned upright by its EXIF orientation. Raises ImageError, or MemoryError when memory runs out."""
    if not data.startswith((JPEG, PNG)):
        raise ImageError("is neither JPEG nor PNG")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged metadata, which is not used
            image = _opened(data, max_pixels)
            image.load()
            return _upright(_rgb(image), _orientation(image))
    except (ImageError, MemoryError):
        raise
    except UnidentifiedImageError:
        raise ImageError("has a header that is damaged") from None
    except Exception as error:  # Pillow has no common class of its errors
        raise ImageError(f"cannot be decoded: {str(error)[:200] or type(error).__name__}") from None


def _opened(data: bytes, max_pixels: int) -> Image.Image:
    """The image with its header read and checked, and no pixels yet."""
    image = Image.open(io.BytesIO(data), formats=_FORMATS)
    width, height = image.size
    if width < 1 or height < 1:
        raise ImageError(f"has the size {width} x {height}")
    if width * height > max_pixels:
        raise ImageError(f"has {width} x {height} pixels; {max_pixels} are the limit")
    if data.startswith(PNG):
        if getattr(image, "n_frames", 1) > 1:
            raise ImageError(f"is animated, with {image.n_frames} frames: send one of them")  # type: ignore[attr-defined]
        _check_end(data)
    return image


def _check_end(data: bytes) -> None:
    """Refuse a PNG that does not end with its last chunk. What cameras write behind a JPEG stays unread."""
    at, kind = len(PNG), b""
    while kind != b"IEND":
        if at + _CHUNK.size > len(data):
            raise ImageError("ends before its last chunk")
        size, kind = _CHUNK.unpack_from(data, at)
        at += _CHUNK.size + size + _CHECKSUM_BYTES
    if at != len(data):
        raise ImageError(f"has {len(data) - at} bytes behind its end" if at < len(data) else "is not whole")


def _rgb(image: Image.Image) -> Image.Image:
    """RGB as transformers' `load_image` makes it: grey three times, no transparency, the higher 8 of 16 bits."""
    if image.mode.startswith("I"):
        values: Any = numpy.asarray(image)
        return Image.fromarray((values >> 8).astype(numpy.uint8)).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _orientation(image: Image.Image) -> Any:
    """The EXIF orientation; 1 (upright) where EXIF cannot be read: that is no reason to refuse the image."""
    try:
        return image.getexif().get(_ORIENTATION, 1)
    except Exception:
        return 1


def _upright(image: Image.Image, orientation: Any) -> Image.Image:
    turn = _TURNS.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(turn)


def versions() -> str:
    return f"pillow {PIL.__version__}"
