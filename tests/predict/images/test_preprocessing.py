"""Tensors of images: equal to those of transformers' processors on Pillow; what is not followed is refused by name."""

import json
from pathlib import Path
from typing import Any

import numpy
import pytest

from slipway_predict.formats import ModelError
from slipway_predict.images import preprocessing
from slipway_predict.images.pixels import pixels
from testkit import pictures

PROCESSORS = ("Beit", "Bit", "CLIP", "ConvNext", "DeiT", "EfficientNet", "Levit", "MobileNetV1", "MobileNetV2",
              "MobileViT", "Pvt", "Siglip", "ViT")  # fmt: skip
VIT, CLIP = {"image_processor_type": "ViTImageProcessor"}, {"image_processor_type": "CLIPImageProcessor"}
CONFIGS: list[dict[str, Any]] = [
    *({"image_processor_type": f"{name}ImageProcessor"} for name in PROCESSORS),
    {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 224}, "crop_pct": 0.875},
    {"image_processor_type": "ConvNextImageProcessor", "size": 224, "crop_pct": 0.95, "resample": 2},
    {"feature_extractor_type": "ViTFeatureExtractor", "size": [20, 30], "resample": 3},
    {"image_processor_type": "ViTImageProcessorFast", "size": {"height": 16, "width": 24}, "do_normalize": False},
    VIT | {"size": 32, "do_rescale": False, "image_mean": [100, 110, 120], "image_std": [50, 51, 52], "resample": 0},
    VIT | {"size": 32, "do_rescale": False, "do_normalize": False, "resample": 1},
    CLIP | {"size": 30, "crop_size": 41, "do_convert_rgb": True},
    CLIP | {"size": 30, "crop_size": {"height": 20, "width": 45}, "rescale_factor": 0.01, "image_mean": 0.25},
    {"image_processor_type": "BitImageProcessor", "do_resize": False, "crop_size": 50},
    {"image_processor_type": "DeiTImageProcessor", "resample": 5, "size": 40, "crop_size": 33},
    {"image_processor_type": "EfficientNetImageProcessor", "size": 30, "resample": 4, "rescale_offset": True,
     "rescale_factor": 1 / 127.5, "include_top": False},
    {"image_processor_type": "MobileViTImageProcessor", "do_flip_channel_order": False, "crop_size": 61},
]  # fmt: skip


def named(config: dict[str, Any]) -> str:
    name = config.get("image_processor_type") or config["feature_extractor_type"]
    return f"{name}-{len(config)}"


@pytest.mark.integration
@pytest.mark.parametrize("config", CONFIGS, ids=named)
def test_tensors_equal_those_of_transformers(tmp_path: Path, config: dict[str, Any]) -> None:
    from transformers import AutoImageProcessor

    (tmp_path / preprocessing.CONFIG).write_text(json.dumps(config))
    steps, theirs = preprocessing.read(tmp_path), AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    assert steps
    for height, width in ((37, 53), (200, 120), (1, 9), (224, 224)):
        image = pictures.noise(height, width)
        expected = theirs(images=image, return_tensors="np")["pixel_values"][0]
        assert numpy.array_equal(pixels(image, steps, 1 << 24), expected.astype("f4"))
        assert expected.shape == (3, steps.height, steps.width)


@pytest.mark.parametrize(
    "config, reason",
    [
        ({}, "no image_processor_type"),
        ({"image_processor_type": ["ViTImageProcessor"]}, "no image_processor_type"),
        ({"image_processor_type": "Qwen2VLImageProcessor"}, "needs Qwen2VLImageProcessor, which is not supported"),
        ({"feature_extractor_type": "WhisperFeatureExtractor"}, "needs WhisperFeatureExtractor"),
        (VIT | {"auto_map": {"AutoImageProcessor": "code.Processor"}}, "code of its own"),
        (VIT | {"do_pad": True}, "do_pad"),
        (VIT | {"do_flip_channel_order": True}, "do_flip_channel_order"),
        (VIT | {"size": {"height": 0, "width": 8}}, "size.height is 0"),
        (VIT | {"size": {"height": 8, "width": 1e9}}, "size.width is"),
        (VIT | {"size": {"longest_edge": 8}}, "size has longest_edge"),
        (VIT | {"size": {"shortest_edge": 8}}, "different sizes"),
        (VIT | {"size": True}, "size is true"),
        (VIT | {"size": "8"}, 'size is "8"'),
        (VIT | {"size": [8, 8, 8]}, "size is"),
        (VIT | {"do_resize": False}, "different sizes"),
        (CLIP | {"crop_size": 5000}, "crop_size is 5000"),
        (CLIP | {"crop_size": {"shortest_edge": 3}}, "crop_size has no height"),
        (VIT | {"do_center_crop": True}, "crop_size is null"),
        (VIT | {"resample": 9}, "resample is 9"),
        (VIT | {"rescale_factor": "1"}, "rescale_factor"),
        (VIT | {"image_mean": [0.5, 0.5]}, "image_mean has 2"),
        (VIT | {"image_std": [0.5, 0, 1]}, "image_std has a 0"),
        ({"image_processor_type": "ConvNextImageProcessor", "size": 224, "crop_pct": 0}, "crop_pct is 0"),
        ({"image_processor_type": "ConvNextImageProcessor", "size": [8, 8]}, "shortest_edge"),
    ],
)
def test_what_is_not_followed_is_named(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        preprocessing.parse(config)


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xff", b"[" * 100_000])
def test_a_file_that_is_no_object_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / preprocessing.CONFIG).write_bytes(content)
    with pytest.raises(ModelError, match=preprocessing.CONFIG):
        preprocessing.read(tmp_path)
