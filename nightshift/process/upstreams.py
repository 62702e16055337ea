"""The upstreams that a worker is given: OpenAI-compatible servers that run models for it.

`NIGHTSHIFT_UPSTREAMS` lists URLs and YAML files. A file has `upstreams`, a list of entries with the fields of
`Upstream`; a URL by itself is an entry with nothing else.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from nightshift.errors import ConfigurationError
from nightshift.fleet.models import ModelKind
from nightshift.process.yaml_files import TextLoader, YamlProblem, line_of, naming, parsed

FILE_BYTES_MAX: Final = 256 * 1024
SETTING: Final = "UPSTREAMS"
"""The setting that errors name."""
API_KEY_VARIABLE: Final = "NIGHTSHIFT_UPSTREAM_API_KEY"
"""The environment variable with the key of upstreams that name no other."""

NULLS: Final = ("", "null", "~", None)

Positive = Annotated[int, Field(gt=0)]
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _read_nulls(cls, data: Any) -> Any:
        """A null of YAML, which is read as text, is a field that is not there."""
        if isinstance(data, dict):
            return {name: value for name, value in data.items() if value not in NULLS}
        return {} if data in NULLS else data


class UpstreamModel(_Entry):
    """The operator's word on one of an upstream's models."""

    id: Annotated[str, Field(max_length=255)] | None = None
    """The id here; by default as at the upstream."""
    kind: ModelKind | None = None
    """The kind here; by default the first that it answers as."""
    context_length: Positive | None = None
    """Tokens of prompt and answer together, where the upstream does not say them."""


class Upstream(_Entry):
    """An entry of the settings."""

    url: str
    """The place where its routes begin, such as `http://gpu-1:8000/v1`."""
    name: str = Field(max_length=64, default_factory=lambda fields: urlsplit(fields["url"]).netloc[:64])
    """The name in logs and metrics; by default host and port."""
    api_key_variable: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = API_KEY_VARIABLE
    """The environment variable that holds its key; without that variable it is sent none."""
    models: Mapping[str, UpstreamModel] = {}
    """The models to serve, by their ids at the upstream; without any, all that it has."""
    max_concurrency: Annotated[int, Field(gt=0, le=4096)] = 512
    """Requests at once at most; how many it takes is measured."""
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """Time for a whole answer."""
    each_address: bool = False
    """Whether each address that its host resolves to is a server of its own, as behind a headless Service."""
    fetches_urls: bool = False
    """Whether it may fetch images and files from addresses that requests name: of a hosted API, or where it
    reaches no network of yours.
    """
    ca_file: Path | None = None
    """Certificates to trust in place of the system's."""
    price_per_million_input_tokens: Price = 0.0
    price_per_million_output_tokens: Price = 0.0

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        url = value.strip().rstrip("/")
        try:
            parts = urlsplit(url)
            has_place = bool((parts.hostname or "").encode("idna")) and parts.port != 0
        except ValueError as error:  # which may quote a password
            raise ValueError("its host or its port is none") from error
        if parts.scheme not in ("http", "https") or not has_place or not url.isprintable() or " " in url:
            raise ValueError("it should begin with http:// or https:// and a host")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("it should have no user, query or fragment; a key is named by api_key_variable")
        if not parts.path:
            raise ValueError(f"it should say where the routes begin, mostly {url}/v1")
        return url


class _File(_Entry):
    upstreams: Annotated[list[Upstream], Field(min_length=1)]


def read_upstreams(entries: Sequence[str]) -> list[Upstream]:
    """The upstreams of the setting's entries. Raises ConfigurationError naming file, line and field."""
    upstreams = [upstream for entry in entries for upstream in _read(entry)]
    names = [upstream.name for upstream in upstreams]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(
            f"Two upstreams are called {twice[0]!r}: give them names of their own.", param=SETTING
        )
    return upstreams


def _read(entry: str) -> Sequence[Upstream]:
    if "://" in entry:
        try:
            return [Upstream(url=entry)]
        except ValidationError as error:
            shown = re.sub("//.*@", "//", re.split("[?#]", entry)[0])  # what is left out may be a key
            raise ConfigurationError(
                f"The upstream {shown!r}: url: {_first(error)[1]}.", param=SETTING
            ) from None
    path = Path(entry)
    if not path.is_file():
        raise ConfigurationError(f"{entry} is no file, and no URL with http:// or https://.", param=SETTING)
    with naming(path, SETTING):
        root = parsed(path, FILE_BYTES_MAX, SETTING, first="upstreams")
        try:
            return _File.model_validate(TextLoader("").construct_document(root)).upstreams
        except ValidationError as error:
            names, says = _first(error)
            field = re.sub(r"^upstreams\.(\d+)", r"upstreams[\1]", ".".join(names))
            raise YamlProblem(line_of(root, names), field, says) from error


def _first(error: ValidationError) -> tuple[list[str], str]:
    """The path of the first wrong field, and what is wrong with it. One that is misspelt lacks, too."""
    first = min(error.errors(include_url=False), key=lambda wrong: wrong["type"] != "extra_forbidden")
    names = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        shapes: dict[int, type[_Entry]] = {1: _File, 3: Upstream, 5: UpstreamModel}
        return names, f"there is no such field; there are {', '.join(shapes[len(names)].model_fields)}"
    return names, first["msg"].removeprefix("Value error, ").replace("Input", "it")
