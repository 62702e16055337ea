"""The call: which request is made of each row, and under which name its runs are known.

Every run of a call is a job of its name. Its date is a digest of its data and a number, so that the same
data are the same run, and changed data another, which reuses the results of the one before.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Required, TypedDict

from nightshift import endpoints
from nightshift.bulk.rows import templates
from nightshift.client.answers import RemoteJob
from nightshift.client.mapping.forms import PARAM, OutputForm
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject
from nightshift.jobs.priorities import PriorityClass

ENDPOINT: Final = "chat"
CALL: Final = "map"  # metadata: the call's digest …
KEY: Final = "map_key"  # … and the column that identifies rows; empty: their places do
DIGEST_CHARS: Final = 32
OWN_PARAMETERS: Final = frozenset({"model", "messages", "response_format", "n", "stream"})

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_WINDOW: Final = re.compile(r"[1-9][0-9]{0,8}[mhd]")
_SCHEMA_AT: Final = "response_format.json_schema.schema"


class MapOptions(TypedDict, total=False):
    """The arguments of `MapCall.checked` beside the prompt."""

    model: Required[str]
    output_schema: object
    key: str | None
    name: str | None
    system: str | None
    parameters: Mapping[str, Any] | None
    output: str | None
    priority: str | None
    completion_window: str


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
    def checked(
        cls,
        prompt: str,
        *,
        model: str,
        output_schema: object = None,
        key: str | None = None,
        name: str | None = None,
        system: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        output: str | None = None,
        priority: str | None = None,
        completion_window: str = "24h",
    ) -> "MapCall":
        """`parameters`: further fields of the chat request. Raises InvalidRequest naming the argument."""
        _check_prompt(prompt)
        if name is not None and _NAME.fullmatch(name) is None:
            raise _invalid("name", "give 1 to 100 letters, digits, '.', '_' or '-', a letter or digit first")
        if key is not None and not (isinstance(key, str) and key):
            raise _invalid("key", "give the name of one column, a text")
        if priority is not None and priority not in set(PriorityClass):
            raise _invalid("priority", f"choose one of {', '.join(PriorityClass)}")
        if _WINDOW.fullmatch(completion_window) is None:
            raise _invalid("completion_window", "give a time such as 90m, 8h or 7d")
        form = OutputForm.from_schema(output_schema)
        template = _template(prompt, model, system, parameters or {}, form)
        return cls(
            name=name or f"map-{_digest_of(template, key)}",
            template=template,
            form=form,
            key=key,
            output=output,
            options={"priority": priority or "standard", "completion_window": completion_window},
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
        is_map = CALL in (earlier.data.get("metadata") or {})
        what = self._difference(earlier) if is_map else "a job that was not made by map"
        advice = "Choose another name, or none: then each call has its own"
        return _invalid("name", f"'{self.name}' stands for {what}, {earlier.id}. {advice}", "name_in_use")

    def _difference(self, earlier: RemoteJob) -> str:
        theirs = earlier.data.get("template") or {}
        fields = {"model": "model", "messages": "prompt", "response_format": PARAM}
        differing = [said for field, said in fields.items() if theirs.get(field) != self.template.get(field)]
        differing += ["key"] if (earlier.data["metadata"].get(KEY) or None) != self.key else []
        return f"a call with another {' and '.join(differing) or 'value of parameters'}"


def form_of_job(job: RemoteJob) -> OutputForm:
    """The form of a map's answers, as its job tells it. Raises InvalidRequest for another job."""
    if CALL not in (job.data.get("metadata") or {}):
        raise _invalid("name", f"{job.id} was not made by map")
    held = (job.data.get("template") or {}).get("response_format") or {}
    return OutputForm.from_schema(held.get("json_schema", {}).get("schema"))


def key_of_job(job: RemoteJob) -> str | None:
    return (job.data.get("metadata") or {}).get(KEY) or None


def _check_prompt(prompt: object) -> None:
    if not isinstance(prompt, str) or not prompt.strip():
        raise _invalid("prompt", "give a text with a column in double braces, such as 'Summarise: {{text}}'")
    if not templates.columns(prompt):
        hint = " (double braces, not single ones)" if re.search(r"\{\w+\}", prompt) else ""
        raise _invalid(
            "prompt", f"it names no column, so that all rows would be the same: {{{{text}}}}{hint}"
        )


def _template(
    prompt: str, model: str, system: str | None, parameters: Mapping[str, Any], form: OutputForm
) -> JsonObject:
    if own := sorted(OWN_PARAMETERS & parameters.keys()):
        raise _invalid(f"parameters.{own[0]}", "map sets it itself")
    if templates.columns(form.schema):
        raise _invalid(
            PARAM, "a schema is the same for all rows, and may not have texts in {{double braces}}"
        )
    template = endpoints.named(ENDPOINT).row_template(model, prompt) | dict(parameters)
    if system is not None:
        template["messages"] = [{"role": "system", "content": system}, *template["messages"]]
    if form.schema is not None:
        held = {"name": "row", "strict": True, "schema": form.schema}
        template["response_format"] = {"type": "json_schema", "json_schema": held}
    _check_request(template, parameters)
    return template


def _check_request(template: JsonObject, parameters: Mapping[str, Any]) -> None:
    """Checks what the server would, unless a row gives a parameter. Raises InvalidRequest."""
    if templates.columns(dict(parameters)):
        return
    try:
        endpoints.named(ENDPOINT).parse(template)
    except InvalidRequest as error:
        param = error.param or "parameters"
        ours = param.replace(_SCHEMA_AT, PARAM) if param.startswith(_SCHEMA_AT) else f"parameters.{param}"
        ours = param if param in ("model", "messages") else ours
        raise InvalidRequest(error.message.replace(param, ours, 1), param=ours, code=error.code) from error


def _digest_of(template: JsonObject, key: str | None) -> str:
    try:
        said = json.dumps([template, key], sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _invalid("parameters", f"it is no JSON: {error}") from error
    return sha256(said.encode()).hexdigest()[:DIGEST_CHARS]


def _invalid(param: str, what: str, code: str | None = None) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{param}': {what}.", param=param, code=code)
