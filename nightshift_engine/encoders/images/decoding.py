"""Bytes of unknown origin to an RGB image: of known formats only, its size looked at before its pixels."""

import io
import re
from typing import Final

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ...errors import InvalidRequest

FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""Formats that are read: the first frame of an animation, the first page of a TIFF."""
IMAGE_PIXELS_MAX: Final = 40_000_000
IMAGE_SIDE_MAX: Final = 32_768
SCAN_PIXELS_MAX: Final = 16 * IMAGE_PIXELS_MAX
"""Pixels times scans of a JPEG: each scan of a progressive one is a pass over all its pixels."""

PARTS_MAX: Final = 16_384
"""Segments of a JPEG before its pixels, or chunks of a PNG: Pillow looks at each in Python and keeps many. A
colour profile and a depth map are some hundreds, 20 MB in chunks of 8 KiB 2,500."""

Image.MAX_IMAGE_PIXELS = None
"""Pillow only warns at its own limit; ours is an error, and is looked at before any pixel is decoded."""

_START_OF_SCAN: Final = b"\xff\xda"
_MARKER_WITH_LENGTH: Final = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]")  # not of restarts (JPEG, table B.1)
_PNG_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_BEGINNING_BYTES: Final = 1_024
_SVG: Final = re.compile(rb"<svg[\s>]", re.IGNORECASE)
_WEB_PAGE: Final = re.compile(
    rb"\s*(?:<!--.{0,200}?-->\s*)?<(?:!doctype\s+html|html|head|body)\b", re.I | re.S
)
_SIXTEEN_BITS: Final = ("I;16", "I;16L", "I;16B", "I;16N")
_CONVERTED: Final = (
    "RGB",
    "1",
    "L",
    "LA",
    "La",
    "P",
    "PA",
    "RGBA",
    "RGBa",
    "RGBX",
    "CMYK",
    "YCbCr",
    "LAB",
    "HSV",
)


class ImageUnreadable(InvalidRequest):
    """These bytes are no image that is read here; the message says what they are, after "the image"."""


def decode(data: bytes, pixels_max: int = IMAGE_PIXELS_MAX) -> Image.Image:
    """An RGB image, turned as its EXIF orientation says.

    As transformers does, transparency is left out. Raises `ImageUnreadable`.
    """
    image = _opened(data, pixels_max)
    try:
        image.load()  # a truncated file raises here
        ImageOps.exif_transpose(image, in_place=True)
        return _as_rgb(image)
    except ImageUnreadable:
        raise
    except Exception as error:  # whatever a broken file makes of the library's decoders
        raise ImageUnreadable(f"is broken or truncated: {_said(error)}") from error


def pixels_of(data: bytes, pixels_max: int = IMAGE_PIXELS_MAX) -> int:
    """The number of pixels that an image says it has, from its header alone. Raises `ImageUnreadable`."""
    image = _opened(data, pixels_max)
    return image.width * image.height


def _opened(data: bytes, pixels_max: int) -> Image.Image:
    """The image with its header read and its pixels not."""
    if not data:
        raise ImageUnreadable("is empty: it has no bytes")
    if (size := _webp_size(data)) is not None:
        _check_size(*size, pixels_max)  # opening one takes memory for its pixels
    if _has_too_many_parts(data):
        raise ImageUnreadable(
            f"has more than {PARTS_MAX} segments or chunks beside its pixels: it is refused"
        )
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise ImageUnreadable(f"{_what(data)}; read are {', '.join(FORMATS)}") from error
    except Exception as error:  # as above
        raise ImageUnreadable(f"is broken or truncated: {_said(error)}") from error
    _check_size(*image.size, pixels_max)
    if image.format == "JPEG":
        _check_scans(image, data.count(_START_OF_SCAN))
    return image


def _has_too_many_parts(data: bytes) -> bool:
    """Steps through a JPEG or PNG as Pillow does. Any other structure is left to the decoder."""
    if data.startswith(_PNG_SIGNATURE):
        position, after = len(_PNG_SIGNATURE), _after_chunk
    elif data.startswith(b"\xff\xd8"):
        position, after = 2, _after_segment
    else:
        return False
    for _ in range(PARTS_MAX):
        position = after(data, position)
        if position >= len(data):
            return False
    return True


def _after_chunk(data: bytes, position: int) -> int:
    return position + 12 + int.from_bytes(data[position : position + 4], "big")


def _after_segment(data: bytes, position: int) -> int:
    """The index after a segment. Fill bytes, and markers that stand alone, are parts too."""
    if data.startswith(_START_OF_SCAN, position):
        return len(data)
    if _MARKER_WITH_LENGTH.match(data, position) is None:
        return position + 1
    return position + 2 + max(2, int.from_bytes(data[position + 2 : position + 4], "big"))


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """Width and height in the header of a WebP image (RFC 9649); None: it is none."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP":
        return None
    kind, head = data[12:16], data[20:30].ljust(10, b"\0")
    if kind == b"VP8X":
        return int.from_bytes(head[4:7], "little") + 1, int.from_bytes(head[7:10], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(head[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return int.from_bytes(head[6:8], "little") & 0x3FFF, int.from_bytes(head[8:10], "little") & 0x3FFF


def _check_size(width: int, height: int, pixels_max: int) -> None:
    if width < 1 or height < 1:
        raise ImageUnreadable(f"has {width} x {height} pixels")
    if width * height > pixels_max or max(width, height) > IMAGE_SIDE_MAX:
        raise ImageUnreadable(
            f"has {width} x {height} pixels; at most {pixels_max} are decoded, and {IMAGE_SIDE_MAX} on a side"
        )


def _check_scans(image: Image.Image, num_scans: int) -> None:
    if num_scans * image.width * image.height > SCAN_PIXELS_MAX:
        raise ImageUnreadable(
            f"has {num_scans} scans of {image.width} x {image.height} pixels: it is refused"
        )


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode in _SIXTEEN_BITS:  # Pillow would cut every value at 255
        values = np.asarray(image).astype(np.uint16)
        return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
    if image.mode not in _CONVERTED:
        raise ImageUnreadable(f"has pixels of the mode {image.mode}, whose range is not known")
    return image if image.mode == "RGB" else image.convert("RGB")


def _what(data: bytes) -> str:
    start = data[:_BEGINNING_BYTES].removeprefix(b"\xef\xbb\xbf")
    if _SVG.search(start) and start.lstrip().startswith(b"<"):
        return "is an SVG drawing, which has no pixels"
    if _WEB_PAGE.match(start):
        return "is a web page, not an image"
    if start.startswith(b"%PDF"):
        return "is a PDF document"
    if start[4:8] == b"ftyp":
        return "is a video, or an image in AVIF or HEIC"
    return "is in none of the formats that are read"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
