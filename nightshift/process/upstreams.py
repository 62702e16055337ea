"""The upstreams that a worker is given: OpenAI-compatible servers that run models for it.

`NIGHTSHIFT_UPSTREAMS` lists URLs and YAML files. A file has `upstreams`, a list of entries with the fields of
`Upstream`; a URL by itself is an entry with nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from nightshift.errors import ConfigurationError
from nightshift.process.yaml_files import TextLoader, YamlProblem, line_of, naming, parsed

FILE_BYTES_MAX: Final = 256 * 1024
UPSTREAMS: Final = "upstreams"
SETTING: Final = "UPSTREAMS"
"""The setting that errors name."""
API_KEY_VARIABLE: Final = "NIGHTSHIFT_UPSTREAM_API_KEY"
"""The environment variable with the key of upstreams that name no other."""

Positive = Annotated[int, Field(gt=0)]
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class UpstreamModel(BaseModel):
    """The operator's word on one of an upstream's models."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """The id here; by default as at the upstream."""
    context_length: Positive | None = None
    """Tokens of prompt and answer together, where the upstream does not say them."""


class Upstream(BaseModel):
    """An entry of the settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    """The place where its routes begin, such as `http://gpu-1:8000/v1`."""
    name: Annotated[str, Field(min_length=1, max_length=64)] = ""
    """The name in logs and metrics; by default host and port."""
    api_key_variable: str = API_KEY_VARIABLE
    """The environment variable that holds its key; without that variable it is sent none."""
    models: Mapping[str, UpstreamModel | None] | None = None
    """The models to serve, by their ids at the upstream; None: all that it has."""
    max_concurrency: Annotated[int, Field(gt=0, le=4096)] = 512
    """Requests at once at most; how many it takes is measured."""
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """Time for a whole answer."""
    each_address: bool = False
    """Whether each address that its host resolves to is a server of its own, as behind a headless Service."""
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
            has_place = bool(parts.hostname) and parts.port != 0
        except ValueError as error:
            raise ValueError(f"it is no URL: {error}") from error
        if parts.scheme not in ("http", "https") or not has_place:
            raise ValueError("it should begin with http:// or https:// and a host")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("it should have no user, query or fragment; a key is named by api_key_variable")
        if not parts.path:
            raise ValueError(f"it should say where the routes begin, mostly {url}/v1")
        return url

    @model_validator(mode="before")
    @classmethod
    def _name(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("url"), str) and not data.get("name"):
            return data | {"name": urlsplit(data["url"].strip()).netloc[:64] or "?"}
        return data

    def model_at(self, id_there: str) -> UpstreamModel | None:
        """The operator's word on a model, by its id at the upstream; None: it is not to be served."""
        if self.models is None:
            return UpstreamModel()
        return (self.models[id_there] or UpstreamModel()) if id_there in self.models else None


def read_upstreams(entries: Sequence[str]) -> list[Upstream]:
    """The upstreams of the setting's entries. Raises ConfigurationError naming file, line and field."""
    upstreams = [upstream for entry in entries for upstream in _read(entry)]
    names = [upstream.name for upstream in upstreams]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(
            f"Two upstreams are called {twice[0]!r}: give them names of their own.", param=SETTING
        )
    return upstreams


def _read(entry: str) -> Iterator[Upstream]:
    if "://" in entry:
        try:
            yield Upstream(url=entry)
        except ValidationError as error:
            field, says = _first(error)
            raise ConfigurationError(f"The upstream {entry!r}: {field}: {says}.", param=SETTING) from error
        return
    path = Path(entry)
    with naming(path, SETTING):
        root = parsed(path, FILE_BYTES_MAX, SETTING)
        for key, _ in root.value:
            if key.value != UPSTREAMS:
                raise YamlProblem(line_of(key), key.value, f"there is no such field; there is {UPSTREAMS}")
        listed = next((value for _, value in root.value), None)
        if not isinstance(listed, yaml.SequenceNode) or not listed.value:
            raise YamlProblem(line_of(root), UPSTREAMS, "it should be a list of upstreams, each with its url")
        for number, node in enumerate(listed.value):
            yield _entry(node, f"{UPSTREAMS}[{number}]")


def _entry(node: yaml.Node, place: str) -> Upstream:
    """Raises YamlProblem."""
    try:
        return Upstream.model_validate(TextLoader("").construct_document(node))
    except ValidationError as error:
        field, says = _first(error)
        raise YamlProblem(line_of(node, field.split(".")), f"{place}.{field}", says) from error


def _first(error: ValidationError) -> tuple[str, str]:
    """The first wrong field, and what is wrong with it."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"] if not str(part).startswith("function"))
    says = first["msg"].removeprefix("Value error, ").replace("Input", "it")
    if first["type"] == "extra_forbidden":
        says = f"there is no such field; there are {', '.join(Upstream.model_fields)}"
    return field, says
