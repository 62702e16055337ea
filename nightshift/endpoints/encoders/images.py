"""Images in requests: {"image": reference}, as in Jina's and Cohere's APIs.

A reference is a data URI, the id of an uploaded file, or a URI with s3, file, hf or https. A worker reads it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

IMAGES_MAX: Final = 64  # per request
REFERENCE_CHARS_SHOWN: Final = 200
_USER: Final = re.compile(r"^([a-z]+://)[^/?#]*@")
_FIELD: Final = "image"


@dataclass(frozen=True, slots=True)
class ImageInput:
    """An image of a request, not read."""

    reference: str

    @property
    def shown(self) -> str:
        """The reference in messages: a URI says more at its end than its beginning, a data URI nothing."""
        return shown(self.reference)


def is_image(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and _FIELD in value


def image_of(value: dict[str, Any], place: str) -> ImageInput:
    """Raises ValueError."""
    reference = value[_FIELD]
    if not isinstance(reference, str) or not reference:
        raise ValueError(
            f"{place}.{_FIELD} must be a text: a data URI, a file id, or an s3, file, hf or https URI"
        )
    if len(value) > 1:
        others = ", ".join(sorted(str(name) for name in value if name != _FIELD)[:3])
        raise ValueError(f"{place} is an image and has no {others} beside it")
    return ImageInput(reference)


def check_count(images: Sequence[object]) -> None:
    """Raises ValueError."""
    if len(images) > IMAGES_MAX:
        raise ValueError(f"at most {IMAGES_MAX} images in one request, got {len(images)}")


def shown(reference: str) -> str:
    if reference.startswith("data:"):
        return "the data URI"
    reference = _USER.sub(r"\1", reference)
    text = reference if len(reference) <= REFERENCE_CHARS_SHOWN else f"…{reference[-REFERENCE_CHARS_SHOWN:]}"
    return repr(text.partition("?")[0])  # a query may hold a signature, as what is before an @ a password
