"""Image files of every kind become RGB, or are refused saying what they are."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from nightshift_engine.encoders.images.decoding import FORMATS, PARTS_MAX, ImageUnreadable, decode, pixels_of
from tests.unit.engine.tiny.images import as_bytes, picture


def png_header(width: int, height: int) -> bytes:
    """A PNG whose header says so, with next to no pixels behind it."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1_000_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.parametrize("format", ["PNG", "WEBP", "BMP", "TIFF"])
def test_formats_without_loss_are_read_exactly(format: str) -> None:
    options = {"lossless": True} if format == "WEBP" else {}
    decoded = decode(as_bytes(picture(1), format, **options))
    assert decoded.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(decoded), np.asarray(picture(1)))


@pytest.mark.parametrize("options", [{}, {"lossless": True}, {"save_all": True}, {"exact": True}])
def test_the_size_of_every_kind_of_webp_is_read_of_its_header(options: dict[str, Any]) -> None:
    image = picture(8, 55, 35)
    more = {"append_images": [picture(9, 55, 35)]} if options.get("save_all") else {}
    for variant in (image, image.convert("RGBA")):
        assert pixels_of(as_bytes(variant, "WEBP", **options, **more), pixels_max=55 * 35) == 55 * 35
        with pytest.raises(ImageUnreadable, match="55 x 35 pixels"):
            pixels_of(as_bytes(variant, "WEBP", **options, **more), pixels_max=55 * 35 - 1)


def progressive(width: int, height: int, more_scans: int) -> bytes:
    """A JPEG whose last scan, of few bytes, comes again and again: each is a pass over all pixels."""
    data = as_bytes(Image.new("L", (width, height)), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * more_scans + data[-2:]


def test_a_progressive_jpeg_of_many_scans_is_refused_by_what_they_cost_together() -> None:
    assert decode(progressive(64, 64, more_scans=40)).size == (64, 64)
    usual = progressive(4_000, 4_000, more_scans=0)
    assert pixels_of(usual) == 16_000_000
    with pytest.raises(ImageUnreadable, match="scans of 4000 x 4000 pixels"):
        pixels_of(progressive(4_000, 4_000, more_scans=40))


PARTS = {  # each the least that Pillow looks at, and behind how many bytes of a file they are inserted
    "segments": ("JPEG", 2, b"\xff\xed\0\2"),
    "restarts": ("JPEG", 2, b"\xff\xd0"),
    "fill bytes": ("JPEG", 2, b"\xff"),
    "junk": ("JPEG", 20, b"\0"),
    "chunks": ("PNG", 33, b"\0\0\0\0abCd" + struct.pack(">I", zlib.crc32(b"abCd"))),
}


@pytest.mark.parametrize("parts", PARTS)
def test_a_file_of_very_many_parts_is_refused_before_they_are_read(parts: str) -> None:
    format, behind, part = PARTS[parts]
    data = as_bytes(picture(1), format)

    def with_parts(count: int) -> bytes:
        return data[:behind] + part * count + data[behind:]

    assert decode(with_parts(PARTS_MAX // 2 - 100)).size == picture(1).size
    with pytest.raises(ImageUnreadable, match="more than 16384 segments or chunks"):
        pixels_of(with_parts(PARTS_MAX + 1))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA"])
def test_other_modes_become_rgb_as_transformers_converts_them(mode: str) -> None:
    image = picture(2).convert(mode)
    np.testing.assert_array_equal(np.asarray(decode(as_bytes(image))), np.asarray(image.convert("RGB")))


def test_cmyk_becomes_rgb() -> None:
    data = as_bytes(picture(3).convert("CMYK"), "JPEG", quality=95)
    decoded = decode(data)
    assert decoded.mode == "RGB"
    expected = Image.open(io.BytesIO(data)).convert("RGB")
    np.testing.assert_array_equal(np.asarray(decoded), np.asarray(expected))


def test_sixteen_bits_are_scaled_and_not_cut() -> None:
    values = (np.arange(64 * 4, dtype=np.uint32) * 257).clip(0, 65535).astype(np.uint16).reshape(16, 16)
    decoded = np.asarray(decode(as_bytes(Image.fromarray(values))))
    np.testing.assert_array_equal(decoded[..., 0], (values >> 8).astype(np.uint8))


def test_of_an_animation_the_first_frame_and_of_a_tiff_the_first_page_are_taken() -> None:
    frames = [picture(number) for number in (4, 5)]
    for format in ("TIFF", "PNG"):
        data = as_bytes(frames[0], format, save_all=True, append_images=frames[1:])
        np.testing.assert_array_equal(np.asarray(decode(data)), np.asarray(frames[0]))
    animated = as_bytes(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode(animated).size == frames[0].size


def test_the_orientation_of_exif_is_applied() -> None:
    image = picture(6)
    exif = Image.Exif()
    exif[0x0112] = 6
    data = as_bytes(image, "PNG", exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert decode(data).size == (image.height, image.width)
    np.testing.assert_array_equal(np.asarray(decode(data)), np.asarray(expected))


SVG = b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"><circle r="3"/></svg>'
PAGE = b"\n<!DOCTYPE html><html><head><title>404</title></head><body>gone</body></html>"
LARGE_WEBP = b"RIFF\x40\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff\x3f\0" * 2 + bytes(40)

BAD = {
    "nothing": (b"", "is empty"),
    "an SVG": (SVG, "SVG drawing"),
    "a web page": (PAGE, "web page"),
    "a PDF": (b"%PDF-1.7\n", "PDF"),
    "AVIF": (b"\x00\x00\x00\x20ftypavif" + bytes(40), "AVIF"),
    "text": (b"hello " * 20, "none of the formats"),
    "no pixels": (png_header(0, 0), "0 x 0|broken|none of the formats"),
    "a bomb": (png_header(30_000, 30_000), "30000 x 30000 pixels; at most 40000000"),
    "a bomb in WebP": (LARGE_WEBP, "16384 x 16384 pixels"),
    "a long line": (png_header(100_000, 1), "100000 x 1 pixels"),
    "half a PNG": (as_bytes(picture(7, 200, 200))[:3000], "broken or truncated"),
    "half a JPEG": (as_bytes(picture(7, 400, 400), "JPEG")[:2000], "broken or truncated"),
    "half a GIF": (as_bytes(picture(7, 200, 200), "GIF")[:2000], "broken or truncated"),
    "half a TIFF": (as_bytes(picture(7, 200, 200), "TIFF")[:2000], "broken or truncated|none of"),
    "floats": (as_bytes(Image.fromarray(np.ones((8, 8), np.float32)), "TIFF"), "mode F"),
    "another format": (as_bytes(picture(7), "PPM"), ", ".join(FORMATS)),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_image_is_refused_saying_what_it_is(name: str) -> None:
    data, problem = BAD[name]
    with pytest.raises(ImageUnreadable, match=problem):
        decode(data)
