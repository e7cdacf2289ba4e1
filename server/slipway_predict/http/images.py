"""Images of a request, as base64, data URLs or bytes: decoded beside the model, and in its batches as tensors."""

import asyncio
import base64
import binascii
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy
from msgspec.structs import replace

from slipway_process.serving.errors import invalid, unavailable

from ..batcher import MIN_QUEUE, BatchQueueFull
from ..description import ImageInput, ModelDescription
from ..executor import InferRequest
from ..process.image_decoders import ImageDecoders
from ..process.workers import WorkerUnavailable, WorkRefused
from ..tensors import BYTES, NUMPY, Array, Tensor, TensorSpec

FORMATS = ("JPEG", "PNG")
# With the names that older browsers and SDKs have for the two. The content decides what an image is.
CONTENT_TYPES = ("image/jpeg", "image/png", "image/jpg", "image/pjpeg", "image/x-png")
_BINARY = (b"\xff", b"\x89")  # first bytes of JPEG and PNG, which base64 never has
_DATA_URL = re.compile(
    rb"\s*data:(?:%s|application/octet-stream|)(?:;[^,;]{1,100}){0,8};base64,"
    % b"|".join(map(str.encode, CONTENT_TYPES)),
    re.IGNORECASE,
)
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_WHITE = b" \t\r\n"
MAX_DECODED_BYTES = 512 << 20  # of the tensors of all images that are decoded and not answered yet

# The path of a row's image in its request, for the error.
Where = Callable[[int], str]


class ImageInputs:
    """The images in requests of one model. `limit`: most images of all requests together at a time."""

    def __init__(self, image: ImageInput, decoders: ImageDecoders, most: int) -> None:
        """`most`: images at a time, if their tensors are small; 0: MIN_QUEUE."""
        self._image, self._decoders = image, decoders
        self.limit = max(1, min(most or MIN_QUEUE, MAX_DECODED_BYTES // (12 * image.height * image.width)))
        self._here = 0

    def described(self) -> dict[str, Any]:
        """What the metadata of the input, which describe a tensor, add about images."""
        image, limits = self._image, {"max_pixels": self._decoders.max_pixels, "max_images": self.limit}
        return {
            "datatype": BYTES,
            "shape": [-1],
            "formats": FORMATS,
            "height": image.height,
            "width": image.width,
        } | limits

    async def close(self) -> None:
        await self._decoders.close()

    @asynccontextmanager
    async def tensors(self, request: InferRequest, where: Where | None) -> AsyncIterator[InferRequest]:
        """Yield the request with tensors in place of its images, which count against `limit` until the context ends.

        Raises:
            HttpError: the request has too many images, or content that is no image; `param` is its path.
            BatchQueueFull: the images of all requests together are too many.
        """
        [given] = request.inputs
        count, at = given.rows, where or (lambda index: f"{given.name}[{index}]")
        if count > self.limit:
            raise invalid(f"The request has {count} images; {self.limit} is the limit.", given.name)
        if self._here + count > self.limit:
            raise BatchQueueFull(f"{self._here} images wait, and {self.limit} is the limit.")
        self._here += count
        try:
            images = [_content(item, at(index)) for index, item in enumerate(given.array.reshape(-1).tolist())]
            found = await self._decoded(images, at)
            yield replace(request, inputs=(self._tensor(given.name, found),))
        finally:
            self._here -= count

    async def _decoded(self, images: list[bytes], at: Where) -> list[Array]:
        """Decode in groups of as many images as there are processes: images of other requests come between groups."""
        found: list[Array] = []
        for start in range(0, len(images), self._decoders.most):
            group = images[start : start + self._decoders.most]
            answers = await asyncio.gather(*map(self._decoders.decode, group), return_exceptions=True)
            for index, answer in enumerate(answers, start):
                if isinstance(answer, WorkRefused):
                    raise invalid(f"{at(index)}: the image {answer}.", at(index), "invalid_image")
                if isinstance(answer, WorkerUnavailable):
                    raise unavailable("no_decoder", f"No process can decode images now: {answer}")
                if isinstance(answer, BaseException):
                    raise answer
                found.append(answer)
        return found

    def _tensor(self, name: str, found: list[Array]) -> Tensor:
        image = self._image
        array = numpy.stack(found) if found else numpy.zeros((0, 3, image.height, image.width), "<f4")
        if image.channels_last:
            array = array.transpose(0, 2, 3, 1)
        return Tensor(name, image.datatype, array.astype(NUMPY[image.datatype], copy=False))


def one_image(image: ImageInput, content: bytes) -> Tensor:
    """The input of a request whose body is one image."""
    array = numpy.empty(1, object)
    array[0] = content
    return Tensor(image.name, BYTES, array)


def takes(description: ModelDescription, tensor: Tensor) -> bool:
    """Whether the tensor holds images for the model, one in each element."""
    image = description.image
    return image is not None and tensor.name == image.name and tensor.datatype == BYTES


def _content(item: bytes, where: str) -> bytes:
    if item.startswith(_BINARY):
        return item
    url = _DATA_URL.match(item)
    try:
        return _decoded(item[url.end() :] if url else item)
    except binascii.Error:
        raise invalid(
            f"{where} is neither base64 of an image nor a data URL of {' or '.join(CONTENT_TYPES[:2])}.",
            where,
            "invalid_image",
        ) from None


def _decoded(text: bytes) -> bytes:
    """The bytes of base64 in either alphabet, in lines or not, padded or not. Raises binascii.Error."""
    plain = text.translate(_URL_SAFE, _WHITE)
    return base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)


def raise_for_shape(tensor: Tensor, spec: TensorSpec) -> None:
    """Raise HttpError for images in another shape than one or two dimensions, or too many for the model."""
    shape = tensor.shape
    if shape not in ((tensor.rows,), (tensor.rows, 1)):
        raise invalid(f"The input {tensor.name!r} has the shape {list(shape)}; images are [n] or [n, 1].", tensor.name)
    if spec.shape[0] not in (-1, tensor.rows):
        raise invalid(
            f"The input {tensor.name!r} has {tensor.rows} images; the model takes {spec.shape[0]}.", tensor.name
        )
