"""Stylesheets, scripts and icons of the page, from the package: under a path that changes with them, so that
browsers may keep them.
"""

import gzip
import hashlib
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

FOLDER: Final = Path(__file__).parent / "static"
TYPES: Final[Mapping[str, str]] = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".ico": "image/x-icon",
    ".png": "image/png",
}
COMPRESSED: Final = (".css", ".js", ".svg")
FOR_EVER: Final = "public, max-age=31536000, immutable"
VERSION_CHARS: Final = 12


class Asset:
    def __init__(self, path: Path) -> None:
        self.content = path.read_bytes()
        self.media_type = TYPES[path.suffix]
        self._is_compressed = path.suffix in COMPRESSED

    @cached_property
    def gzipped(self) -> bytes:
        return gzip.compress(self.content, mtime=0)

    def answer(self, request: Request, cache_control: str = FOR_EVER) -> Response:
        headers = {"cache-control": cache_control, "cross-origin-resource-policy": "same-origin"}
        if not self._is_compressed:
            return Response(self.content, media_type=self.media_type, headers=headers)
        headers["vary"] = "accept-encoding"
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(self.content, media_type=self.media_type, headers=headers)
        headers["content-encoding"] = "gzip"
        return Response(self.gzipped, media_type=self.media_type, headers=headers)


@cache
def assets() -> Mapping[str, Asset]:
    """The assets by their path below the folder."""
    paths = sorted(path for path in FOLDER.rglob("*") if path.suffix in TYPES)
    return {path.relative_to(FOLDER).as_posix(): Asset(path) for path in paths}


@cache
def version() -> str:
    """A digest of all assets together."""
    together = hashlib.sha256()
    for name, asset in assets().items():
        together.update(f"{name}\0{len(asset.content)}\0".encode() + asset.content)
    return together.hexdigest()[:VERSION_CHARS]
