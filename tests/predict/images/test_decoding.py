"""Files to upright RGB images: every mode and orientation, and hostile files, which are refused with a reason."""

import io
import random

import numpy
import pytest
from PIL import Image, ImageOps

from slipway_predict.images.decoding import ImageError, decode
from slipway_predict.images.pixels import pixels
from slipway_predict.images.preprocessing import parse
from testkit import pictures

LIMIT = 1 << 20
MODES = ("1", "L", "LA", "P", "RGB", "RGBA")


@pytest.mark.parametrize("mode", MODES)
def test_a_png_of_each_mode_is_what_pillow_makes_rgb_of_it(mode: str) -> None:
    image = pictures.noise(20, 30).convert(mode)
    assert numpy.array_equal(decode(pictures.encoded(image), LIMIT), image.convert("RGB"))


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_a_jpeg_of_each_mode_is_what_pillow_makes_rgb_of_it(mode: str) -> None:
    data = pictures.encoded(pictures.noise(20, 30).convert(mode), "JPEG")
    with Image.open(io.BytesIO(data)) as image:
        assert image.mode == mode
        assert numpy.array_equal(decode(data, LIMIT), image.convert("RGB"))


def test_transparency_is_left_out_of_a_palette_too() -> None:
    image = pictures.noise(20, 30).convert("P")
    data = pictures.encoded(image, transparency=bytes(range(256)))
    assert numpy.array_equal(decode(data, LIMIT), image.convert("RGB"))


def test_of_16_bits_the_higher_8_remain() -> None:
    values = numpy.array([[0, 255, 256, 32_768, 65_535]], ">u2")
    grey = decode(pictures.png(5, 1, b"\0" + values.tobytes(), bits=16, color=0), LIMIT)
    assert numpy.asarray(grey)[0, :, 0].tolist() == [0, 0, 1, 128, 255]
    colors = decode(pictures.png(5, 1, b"\0" + numpy.repeat(values, 3).tobytes(), bits=16), LIMIT)
    assert numpy.array_equal(grey, colors)


@pytest.mark.parametrize("orientation", range(9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_an_orientation_of_exif_is_followed(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = pictures.encoded(pictures.noise(20, 30), kind, exif=exif)
    with Image.open(io.BytesIO(data)) as image:
        assert numpy.array_equal(decode(data, LIMIT), ImageOps.exif_transpose(image))


def test_exif_that_cannot_be_read_turns_nothing() -> None:
    image = pictures.noise(20, 30)
    data = pictures.encoded(image, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff" + bytes(9))
    assert numpy.array_equal(decode(data, LIMIT), decode(pictures.encoded(image, "JPEG"), LIMIT))


def test_what_a_camera_writes_behind_a_jpeg_is_not_read() -> None:
    data = pictures.encoded(pictures.noise(20, 30), "JPEG")
    assert numpy.array_equal(decode(data, LIMIT), decode(data + pictures.archive(), LIMIT))


def test_of_a_jpeg_with_several_pictures_the_first_is_taken() -> None:
    first = pictures.noise(20, 30)
    data = pictures.encoded(first, "MPO", save_all=True, append_images=[pictures.noise(20, 30, 2)])
    assert numpy.array_equal(decode(data, LIMIT), decode(pictures.encoded(first, "JPEG"), LIMIT))


@pytest.mark.parametrize("name", list(pictures.hostile()))
def test_a_hostile_file_is_refused_with_a_reason(name: str) -> None:
    content, reason = pictures.hostile()[name]
    with pytest.raises(ImageError, match=reason):
        decode(content, LIMIT)


def test_the_limit_is_of_pixels_and_counts_those_of_the_header() -> None:
    data = pictures.encoded(pictures.noise(20, 30))
    assert decode(data, 600).size == (30, 20)
    with pytest.raises(ImageError, match="30 x 20 pixels; 599 are the limit"):
        decode(data, 599)


def test_a_long_image_that_a_resize_would_make_huge_is_refused() -> None:
    steps = parse({"image_processor_type": "CLIPImageProcessor"})
    image = decode(pictures.encoded(Image.new("RGB", (1_000_000, 1))), LIMIT)
    with pytest.raises(ImageError, match="would be 224000000 x 224"):
        pixels(image, steps, LIMIT)


def test_no_damage_raises_anything_else() -> None:
    """Bytes of sound files are replaced, cut out and repeated."""
    chance = random.Random(7)
    exif = Image.Exif()
    exif[0x0112] = 6
    seeds = [
        pictures.encoded(pictures.noise(12, 9), "JPEG", exif=exif),
        pictures.encoded(pictures.noise(12, 9), "JPEG", progressive=True),
        pictures.encoded(pictures.noise(12, 9).convert("CMYK"), "JPEG"),
        pictures.encoded(pictures.noise(12, 9), exif=exif),
        pictures.encoded(pictures.noise(12, 9).convert("P"), transparency=bytes(range(256))),
    ]
    outcomes = set()
    for turn in range(2000):
        data = bytearray(seeds[turn % len(seeds)])
        for _ in range(chance.randint(1, 8)):
            at = chance.randrange(len(data))
            step = chance.randrange(3)
            if step == 0:
                data[at] = chance.randrange(256)
            elif step == 1:
                del data[at : at + chance.randint(1, 30)]
            else:
                data[at:at] = data[at : at + chance.randint(1, 30)]
            if not data:
                break
        try:
            outcomes.add(decode(bytes(data), LIMIT).mode)
        except ImageError:
            outcomes.add("refused")
    assert outcomes == {"RGB", "refused"}
