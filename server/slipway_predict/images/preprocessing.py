"""preprocessor_config.json of Hugging Face's image processors, read as transformers does; others are refused."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..formats import ModelError

CONFIG = "preprocessor_config.json"
MAX_CONFIG_BYTES = 1 << 20
MAX_SIDE = 2048  # of the image that a model gets
CHANNELS = 3
_HALF = (0.5, 0.5, 0.5)
_IMAGENET = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}
_CLIP = {
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "crop_size": 224,
}
_MOBILE = {"resample": 2, "size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": 224}
# What each processor does where its file has no such field, and fields that only it has.
_COMMON: dict[str, Any] = {
    "do_resize": True, "size": 224, "resample": 3, "do_center_crop": False, "crop_size": None, "do_rescale": True,
    "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": _HALF, "image_std": _HALF,
}  # fmt: skip
_PROCESSORS: dict[str, dict[str, Any]] = {
    "BeitImageProcessor": {"crop_size": 224},
    "BitImageProcessor": _CLIP,
    "CLIPImageProcessor": _CLIP,
    "ConvNextImageProcessor": {"size": {"shortest_edge": 384}, "crop_pct": 224 / 256},
    "DeiTImageProcessor": {"size": 256, "do_center_crop": True, "crop_size": 224},
    "EfficientNetImageProcessor": {"size": 346, "crop_size": 289, "rescale_offset": False, "include_top": True},
    "LevitImageProcessor": _IMAGENET | {"size": {"shortest_edge": 224}, "do_center_crop": True, "crop_size": 224},
    "MobileNetV1ImageProcessor": _MOBILE,
    "MobileNetV2ImageProcessor": _MOBILE,
    "MobileViTImageProcessor": {
        "size": {"shortest_edge": 224}, "do_center_crop": True, "crop_size": 256, "do_flip_channel_order": True,
    },
    "PvtImageProcessor": _IMAGENET,
    "SiglipImageProcessor": {},
    "ViTImageProcessor": {"resample": 2},
}  # fmt: skip
# Fields without effect on pixels: every image becomes RGB, and reduced labels are for masks of segmentation.
_WITHOUT_EFFECT = frozenset({"do_convert_rgb", "do_reduce_labels"})
_RESAMPLES = range(6)  # Pillow's numbers: nearest, lanczos, bilinear, bicubic, box, hamming


class Preprocessing(msgspec.Struct, frozen=True):
    """What is done to an RGB image, in this order; `height` and `width` are those of the result."""

    processor: str
    height: int
    width: int
    resize: tuple[int, int] | None = None  # height and width
    shortest_edge: int = 0  # pixels of the shorter side after a resize that keeps the ratio; 0: no such resize
    resample: int = 3
    crop: tuple[int, int] | None = None  # of the centre
    scale: float | None = None
    offset: float = 0.0
    mean: tuple[float, float, float] | None = None
    deviation: tuple[float, float, float] | None = None
    deviation_twice: bool = False
    bgr: bool = False


def read(folder: Path) -> Preprocessing | None:
    """The steps of the folder's file; None without the file. Raises ModelError for one that is not supported."""
    path = folder / CONFIG
    if not path.is_file():
        return None
    return parse(json_object(path))


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ModelError for a file that is too large, or has other content."""
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise ModelError(f"{path.name} has more than {MAX_CONFIG_BYTES} bytes.")
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path.name} is not JSON: {str(error)[:100]}.") from None
    if not isinstance(found, dict):
        raise ModelError(f"{path.name} is not a JSON object.")
    return found


def parse(written: Mapping[str, Any]) -> Preprocessing:
    """The steps that a file describes. Raises ModelError with the name of the processor or the field."""
    name = _processor(written)
    fields = _COMMON | _PROCESSORS[name] | {key: value for key, value in written.items() if value is not None}
    for key, value in fields.items():
        known = key in _COMMON or key in _PROCESSORS[name] or key in _WITHOUT_EFFECT
        if key.startswith("do_") and value and not known:
            raise ModelError(f"{CONFIG} has {key[:64]}, which is not supported for {name}.")
    mean, deviation = (_triple(fields, key) for key in ("image_mean", "image_std"))
    if 0.0 in deviation:
        raise ModelError(f"{CONFIG}: image_std has a 0.")
    normalized = bool(fields["do_normalize"]) and name != "MobileViTImageProcessor"  # whose own code never does
    twice = bool(fields.get("include_top"))
    resize, edge, crop = _geometry(name, fields)
    end = crop or resize
    if end is None:
        raise ModelError(
            f"{CONFIG} leaves images of different sizes, and a model needs equal ones for batches: write size with "
            "height and width, or crop_size with do_center_crop."
        )
    return Preprocessing(
        name, *end, resize, edge, _resample(fields), crop,
        _number(fields, "rescale_factor") if fields["do_rescale"] else None,
        -1.0 if fields.get("rescale_offset") and fields["do_rescale"] else 0.0,
        mean if normalized else None, deviation if normalized or twice else None, twice,
        bool(fields.get("do_flip_channel_order")),
    )  # fmt: skip


def _processor(written: Mapping[str, Any]) -> str:
    given = written.get("image_processor_type") or written.get("feature_extractor_type")
    if not isinstance(given, str):
        raise ModelError(f"{CONFIG} has no image_processor_type: write one of {', '.join(_PROCESSORS)}.")
    name = given.replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast").removesuffix("Pil")
    if name not in _PROCESSORS or "auto_map" in written:
        what = given[:64] if name not in _PROCESSORS else "code of its own (auto_map)"
        raise ModelError(
            f"{CONFIG} needs {what}, which is not supported: write one of {', '.join(_PROCESSORS)}, or remove the file "
            "and send tensors."
        )
    return name


def _geometry(name: str, fields: Mapping[str, Any]) -> tuple[tuple[int, int] | None, int, tuple[int, int] | None]:
    """Height and width to resize to, or the shortest edge instead, and height and width of the crop."""
    crop = _square(fields, "crop_size") if fields["do_center_crop"] else None
    if not fields["do_resize"]:
        return None, 0, crop
    by_edge = isinstance(_PROCESSORS[name].get("size"), dict)  # what a plain number stands for
    resize, edge = _size(fields, by_edge)
    if name == "ConvNextImageProcessor":
        return _convnext(fields, edge, crop)
    if name == "LevitImageProcessor" and edge:
        edge = int((256 / 224) * edge)
    return resize, edge, crop


def _convnext(
    fields: Mapping[str, Any], edge: int, crop: tuple[int, int] | None
) -> tuple[tuple[int, int] | None, int, tuple[int, int] | None]:
    """As `_geometry`, for ConvNeXT: below 384 it resizes by `crop_pct` and crops, from 384 on it ignores the ratio."""
    if not edge:
        raise ModelError(f"{CONFIG}: size of ConvNextImageProcessor is a shortest_edge.")
    if crop is not None and crop != (edge, edge):
        raise ModelError(f"{CONFIG}: ConvNextImageProcessor with another crop_size than its size is not supported.")
    if edge >= 384:
        return (edge, edge), 0, crop
    share = _number(fields, "crop_pct")
    if not 0.1 <= share <= 1.0:
        raise ModelError(f"{CONFIG}: crop_pct is {share:g}; write 0.1 to 1.")
    return None, int(edge / share), (edge, edge)


def _size(fields: Mapping[str, Any], by_edge: bool) -> tuple[tuple[int, int] | None, int]:
    size = fields["size"]
    if isinstance(size, Mapping):
        given = {key for key, value in size.items() if value is not None}
        if given == {"shortest_edge"}:
            return None, _side(size["shortest_edge"], "size.shortest_edge")
        if given != {"height", "width"}:
            raise ModelError(f"{CONFIG}: size has {', '.join(sorted(given))[:100]}: write height and width.")
    elif by_edge and not isinstance(size, list):
        return None, _side(size, "size")
    return _square(fields, "size"), 0


def _square(fields: Mapping[str, Any], key: str) -> tuple[int, int]:
    """A height and a width, also as a list, or as one number for both."""
    value = fields[key]
    if isinstance(value, Mapping):
        if not {"height", "width"} <= set(value):
            raise ModelError(f"{CONFIG}: {key} has no height and width.")
        return _side(value["height"], f"{key}.height"), _side(value["width"], f"{key}.width")
    if isinstance(value, list) and len(value) == 2:
        return _side(value[0], key), _side(value[1], key)
    return _side(value, key), _side(value, key)


def _side(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_SIDE:
        raise ModelError(f"{CONFIG}: {where} is {json.dumps(value, default=str)[:64]}: write 1 to {MAX_SIDE}.")
    return value


def _resample(fields: Mapping[str, Any]) -> int:
    value = fields["resample"]
    if not isinstance(value, int) or isinstance(value, bool) or value not in _RESAMPLES:
        raise ModelError(f"{CONFIG}: resample is {json.dumps(value, default=str)[:64]}: write 0 to 5.")
    return value


def _number(fields: Mapping[str, Any], key: str) -> float:
    value = fields[key]
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise ModelError(f"{CONFIG}: {key} is {json.dumps(value, default=str)[:64]}: write a number.")
    return float(value)


def _triple(fields: Mapping[str, Any], key: str) -> tuple[float, float, float]:
    """One number for each channel, or one for all."""
    value = fields[key]
    values = list(value) if isinstance(value, (list, tuple)) else [value] * CHANNELS
    if len(values) != CHANNELS:
        raise ModelError(f"{CONFIG}: {key} has {len(values)} numbers; images have {CHANNELS} channels.")
    red, green, blue = (_number({key: one}, key) for one in values)
    return red, green, blue
