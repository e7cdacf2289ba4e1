"""Processes that decode images for a model: isolated as the model's own, one image at a time in each."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

from slipway_process.serving.turns import QueueRules

from ..formats import IMAGES
from ..images.question import PIXELS, question
from ..tensors import Array
from .messages import LoadModel
from .workers import WorkerRules, Workers

MAX_DECODERS = 4
IMAGE_S = 10.0  # for one image; a process that takes longer is ended
# Of a process: the interpreter with its libraries, and what Pillow and numpy keep of each pixel while they convert it.
BASE_BYTES, PIXEL_BYTES = 256 << 20, 16


@dataclass(frozen=True, slots=True)
class DecoderRules:
    """`config`: path of the model's preprocessor_config.json. `most`: number of processes."""

    config: str
    most: int
    max_pixels: int
    log_level: str = "info"


class ImageDecoders(Workers):
    """At most `rules.queue.slots` processes, each started when it is first needed."""

    def __init__(self, rules: DecoderRules, decoded: Callable[[float], None] = lambda seconds: None) -> None:
        """`decoded` gets the seconds of each image."""
        memory_bytes = BASE_BYTES + PIXEL_BYTES * rules.max_pixels
        start = LoadModel(rules.config, IMAGES, 1, memory_bytes, 1, rules.log_level)
        queue = QueueRules(rules.most, rules.most, sys.maxsize)  # `http/predict/images.py` bounds those that wait
        super().__init__(WorkerRules(start, "decode", queue, IMAGE_S), decoded)
        self.most, self.max_pixels = rules.most, rules.max_pixels

    async def decode(self, image: bytes) -> Array:
        """The tensor of one image; channels, height, width. A client that leaves does not end the process.

        Raises:
            WorkRefused: the content is no image, is too large, or ended the process.
            WorkerUnavailable: no process could be started.
        """
        [found] = await self.run(question(image, self.max_pixels), [PIXELS])
        return found.array
