"""Hides secrets: those that the settings hold, and what looks like one wherever it comes from."""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from nightshift.settings import EVERY_CONCERN, HOLD_PASSWORDS
from nightshift.tenants.keys import API_KEY_FILE
from nightshift.tenants.vault import KEY_FILE

HIDDEN: Final = "[hidden]"
SECRET_CHARS_MIN: Final = 4  # a shorter text would hide parts of ordinary words

SECRET_VARIABLES: Final = frozenset(
    {"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}
)
# May hold a password in a URL's user part.
URL_VARIABLES: Final = tuple(
    name
    for each in ("http_proxy", "https_proxy", "all_proxy", "aws_endpoint_url", "aws_endpoint_url_s3")
    for name in (each, each.upper())
)

# Headers for the collector of traces, as NAME=VALUE,…
HEADER_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")

# What is hidden keeps its name, so that a reader sees what was there.
_LOOKS_SECRET: Final = (
    re.compile(r"(?P<kept>\bns_(?:live|test)_)[0-9A-Za-z_-]+"),  # our keys
    re.compile(r"(?P<kept>\bwhsec_)[0-9A-Za-z+/=_-]+"),
    re.compile(r"(?P<kept>\bsk-)[0-9A-Za-z_-]{8,}"),
    re.compile(r"(?P<kept>\bhf_)[0-9A-Za-z]{8,}"),
    re.compile(r"(?P<kept>\b(?:AKIA|ASIA))[0-9A-Z]{12,}"),
    re.compile(r"(?P<kept>\b(?:bearer|basic)\s+)[0-9A-Za-z._~+/=-]{4,}", re.IGNORECASE),
    re.compile(
        r"(?P<kept>[?&](?:X-(?:Amz|Goog)-[A-Za-z-]+|AWSAccessKeyId|Signature|Expires|sig|se|sp|sv|token|key"
        r"|api_key|access_token|password)=)[^&\s\"'<>]+",
        re.IGNORECASE,
    ),
    re.compile(r"(?P<kept>\b[a-z][a-z0-9+.-]*://)[^\s/@\"'<>]+(?=@)", re.IGNORECASE),  # user and password
    re.compile(r"(?P<kept>\bpassword\s*[=:]\s*)[^\s,;\"']+", re.IGNORECASE),
    re.compile(r"(?P<kept>-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?=-----END|\Z)", re.DOTALL),
)


class Masker:
    """Call it with a text; the text without these secrets, and without what looks like one, comes back."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for form in (secret, quote(secret, safe=""), unquote(secret))}
        known = sorted((form for form in forms if len(form) >= SECRET_CHARS_MIN), key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def __call__(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        for pattern in _LOOKS_SECRET:
            text = pattern.sub(rf"\g<kept>{HIDDEN}", text)
        return text

    @classmethod
    def of_installation(cls, data_dir: Path, environment: Mapping[str, str] = os.environ) -> "Masker":
        """Knows the secrets in the settings, in the environment and in the data directory's files."""
        return cls([*_in_settings(), *_in_environment(environment), *_in_files(data_dir)])


def without_password(url: str) -> str:
    """A URL without its user and password, and without its query, which may be signed."""
    try:
        place = urlsplit(url)
        bare = place.netloc.rpartition("@")
    except ValueError:  # it may quote part of the password
        return HIDDEN
    return place._replace(
        netloc=f"{HIDDEN}@{bare[2]}" if bare[1] else bare[2], query="", fragment=""
    ).geturl()


def _in_settings() -> Iterable[str]:
    for concern in EVERY_CONCERN:
        settings = concern()
        for name in HOLD_PASSWORDS & settings.__class__.model_fields.keys():
            yield from _secrets_of(str(getattr(settings, name)))


def _in_environment(environment: Mapping[str, str]) -> Iterable[str]:
    yield from (environment[name] for name in SECRET_VARIABLES if environment.get(name))
    for name in URL_VARIABLES:
        yield from _passwords_of(environment.get(name, ""))
    for name in HEADER_VARIABLES:
        yield from (entry.partition("=")[2].strip() for entry in environment.get(name, "").split(","))


def _in_files(data_dir: Path) -> Iterable[str]:
    for name in (API_KEY_FILE, KEY_FILE):
        with suppress(OSError, UnicodeDecodeError):
            yield (data_dir / name).read_text().strip()


def _secrets_of(value: str) -> Iterable[str]:
    """Of a URL its password; anything else is a secret as a whole."""
    return _passwords_of(value) if "://" in value or ":///" in value else (value,)


def _passwords_of(url: str) -> Iterable[str]:
    try:
        place = urlsplit(url)
        password = place.password or ""
    except ValueError:
        return (url,)
    queried = re.findall(r"(?:password|passwd|sslpassword)=([^&]+)", place.query, re.IGNORECASE)
    return (each for each in (password, *queried) if each)
