"""The call: which request is made of each row, and under which name its runs are known.

Every run of a call is a job of its name. Its date is a digest of its data and a number, so that the same
data are the same run, and changed data another, which reuses the results of the one before.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, Final, Literal, Required

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # as pydantic needs it before Python 3.12

from nightshift import endpoints
from nightshift.bulk.rows import templates
from nightshift.client.answers import RemoteJob
from nightshift.client.mapping.forms import PARAM, OutputForm, as_json_object, invalid
from nightshift.endpoints.requests import invalid_request
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject

ENDPOINT: Final = "chat"
CALL: Final = "map"  # metadata: the call's digest …
KEY: Final = "map_key"  # … and the column that identifies rows; empty: their places do
DIGEST_CHARS: Final = 32
OWN_PARAMETERS: Final = frozenset(
    {"model", "messages", "response_format", "n", "stream", "tools", "functions"}
)

_SCHEMA_AT: Final = "response_format.json_schema.schema"


class MapOptions(TypedDict, total=False):
    """The arguments of `Client.map` beside the data, the prompt and `wait`. `parameters`: more fields of the
    chat request. `progress`: whether a bar shows how far the call is, where there is a terminal.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]

    model: Required[str]
    output_schema: object
    key: Annotated[str, Field(min_length=1)] | None
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] | None
    system: str | None
    parameters: Mapping[str, Any] | None
    output: str | None
    priority: Literal["interactive", "standard", "background"] | None
    completion_window: Annotated[str, Field(pattern="^[1-9][0-9]{0,8}[mhd]$")]
    progress: bool


_OPTIONS: Final = TypeAdapter(MapOptions)


@dataclass(frozen=True, kw_only=True)
class MapCall:
    """A checked call. `options`: fields of the job that change no answer."""

    name: str
    template: JsonObject
    form: OutputForm
    key: str | None
    output: str | None
    options: JsonObject

    @classmethod
    def checked(cls, prompt: object, options: MapOptions) -> "MapCall":
        """Raises InvalidRequest naming the argument."""
        try:
            given = _OPTIONS.validate_python(options)
        except ValidationError as error:
            refused = invalid_request(error, MapOptions.__annotations__)
            if refused.code == "unknown_parameter":
                advice = "Fields of the chat request belong in 'parameters'."
                refused = InvalidRequest(
                    f"{refused.message} {advice}", param=refused.param, code=refused.code
                )
            raise refused from error
        form = OutputForm.from_schema(given.get("output_schema"))
        template = _template(_checked_prompt(prompt), given, form)
        key = given.get("key")
        return cls(
            name=given.get("name") or f"map-{_digest_of(template, key)}",
            template=template,
            form=form,
            key=key,
            output=given.get("output"),
            options={
                "priority": given.get("priority") or "standard",
                "completion_window": given.get("completion_window", "24h"),
            },
        )

    @property
    def digest(self) -> str:
        """Tells calls apart whose answers differ."""
        return _digest_of(self.template, self.key)

    @property
    def columns(self) -> list[str]:
        """The columns, or parts of columns, that the request names."""
        return sorted(templates.columns(self.template))

    def job(self, input: str, id_column: str | None, date: str, reuse: str | None) -> JsonObject:
        """The body of `POST /v1/jobs`."""
        body = {
            "endpoint": ENDPOINT,
            "template": self.template,
            "input": input,
            "id_column": id_column,
            "output": self.output,
            "format": "jsonl" if self.output is None else "parquet",
            "name": self.name,
            "date": date,
            "reuse": reuse,
            "reuse_sampled": True,  # an answer of the same call is as good as another
            "metadata": {CALL: self.digest, KEY: self.key or ""},
            **self.options,
        }
        return {field: value for field, value in body.items() if value is not None}

    def is_of(self, run: RemoteJob) -> bool:
        """Whether a job is a run of this call."""
        return bool((run.data.get("metadata") or {}).get(CALL) == self.digest)

    def objection(self, earlier: RemoteJob) -> InvalidRequest:
        """The error where the name stands for another call than this; `earlier` is described."""
        what, metadata = "a job that was not made by map", earlier.data.get("metadata") or {}
        if CALL in metadata:
            theirs, fields = earlier.data.get("template") or {}, self.template
            said = {"model": "model", "messages": "prompt", "response_format": PARAM}
            differing = [said[field] for field in said if theirs.get(field) != fields.get(field)]
            differing += ["key"] if (metadata.get(KEY) or None) != self.key else []
            what = f"a call with another {' and '.join(differing) or 'value of parameters'}"
        advice = "Choose another name, or none: then each call has its own"
        return invalid("name", f"'{self.name}' stands for {what}, {earlier.id}. {advice}", "name_in_use")


def form_of_job(job: RemoteJob) -> OutputForm:
    """The form of a map's answers, as its job tells it. Raises InvalidRequest for another job."""
    if CALL not in (job.data.get("metadata") or {}):
        raise invalid("name", f"{job.id} was not made by map")
    held = (job.data.get("template") or {}).get("response_format") or {}
    return OutputForm.from_schema(held.get("json_schema", {}).get("schema"))


def key_of_job(job: RemoteJob) -> str | None:
    return (job.data.get("metadata") or {}).get(KEY) or None


def _checked_prompt(prompt: object) -> str:
    if not isinstance(prompt, str) or not prompt.strip():
        raise invalid("prompt", "give a text with a column in double braces, such as 'Summarise: {{text}}'")
    if not templates.columns(prompt):
        hint = " (double braces, not single ones)" if re.search(r"\{\w+\}", prompt) else ""
        raise invalid("prompt", f"it names no column, so that all rows would be the same: {{{{text}}}}{hint}")
    return prompt


def _template(prompt: str, given: MapOptions, form: OutputForm) -> JsonObject:
    """The request made of each row, checked as the server would, unless a row gives a parameter."""
    parameters = as_json_object(given.get("parameters") or {}, "parameters")
    if own := sorted(OWN_PARAMETERS & parameters.keys()):
        raise invalid(f"parameters.{own[0]}", "map sets it itself, or has no column for what it asks")
    if templates.columns(form.schema):
        raise invalid(PARAM, "a schema is the same for all rows, and may not have texts in {{double braces}}")
    template = endpoints.named(ENDPOINT).row_template(given["model"], prompt) | parameters
    if (system := given.get("system")) is not None:
        template["messages"] = [{"role": "system", "content": system}, *template["messages"]]
    if form.schema is not None:
        held = {"name": "row", "strict": True, "schema": form.schema}
        template["response_format"] = {"type": "json_schema", "json_schema": held}
    if not templates.columns(parameters):
        try:
            endpoints.named(ENDPOINT).parse(template)
        except InvalidRequest as error:
            raise _as_argument(error) from error
    return template


def _as_argument(error: InvalidRequest) -> InvalidRequest:
    """The error of a request, naming the argument that the caller gave."""
    field = error.param or "parameters"
    if field in ("model", "messages"):
        return error
    is_schema = field.startswith(_SCHEMA_AT)
    argument = field.replace(_SCHEMA_AT, PARAM) if is_schema else f"parameters.{field}"
    return InvalidRequest(error.message.replace(field, argument, 1), param=argument, code=error.code)


def _digest_of(template: JsonObject, key: str | None) -> str:
    return sha256(json.dumps([template, key], sort_keys=True).encode()).hexdigest()[:DIGEST_CHARS]
