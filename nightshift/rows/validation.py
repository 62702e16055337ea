"""Is a whole OpenAI batch file fit to be run? Read once, line by line; no row runs before every row has
passed.

What only one row's answer can tell (a prompt that is too long, a temperature out of range) is that row's
error later on. Here it is about the file: is it JSONL, is each line a request of this endpoint, are the ids
unique.

On the way the file is cut: `Cut`s lie on row boundaries, about as far apart as a shard is to be long.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final

from nightshift.endpoints.requests import embedding_inputs
from nightshift.errors import InvalidRequest
from nightshift.jobs import Endpoint, InputError, JsonObject
from nightshift.rows.lines import BadLine, Line, parse_object
from nightshift.rows.requests import CUSTOM_ID_CHARS_MAX, is_custom_id

ERRORS_MAX: Final = 100  # bad lines reported; the last one's message says how many more there are
ID_DIGEST_BYTES: Final = 16  # kept per row to find duplicates: two ids that differ never share one
MODEL_CHARS_MAX: Final = 256
QUOTED_CHARS_MAX: Final = 80  # of somebody's value in a message


@dataclass(frozen=True)
class FileLimits:
    """What a file may hold, and how long a shard of it is to be."""

    rows_max: int
    embedding_inputs_max: int
    shard_bytes: int
    shard_rows: int


@dataclass(frozen=True)
class Cut:
    """Where a shard begins: the byte of its first row, and how many rows come before it."""

    offset: int
    first_row: int


@dataclass(frozen=True)
class ValidationReport:
    """What was found. A file with errors has no rows that may be run."""

    rows: int
    model: str | None
    cuts: tuple[Cut, ...]
    errors: tuple[InputError, ...]


def validate(
    lines: Iterable[Line], endpoint: Endpoint, serves: Callable[[str], InputError | None], limits: FileLimits
) -> ValidationReport:
    """Check every line of a file. `serves` says what is wrong with a model's id, if anything.

    Holds one line, and a digest of each row's id: about 100 bytes with what Python needs around it, so 5 MB
    for the 50,000 rows a file may have by default.
    """
    validator = _Validator(endpoint, serves, limits)
    for line in lines:
        if line.data is not None and not line.data.strip():
            continue
        if validator.rows >= limits.rows_max:
            validator.too_many_rows(line)
            break
        validator.check(line)
    return validator.report()


class _Problem(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


@dataclass
class _Validator:
    endpoint: Endpoint
    serves: Callable[[str], InputError | None]
    limits: FileLimits
    rows: int = 0
    model: str | None = None
    embedding_inputs: int = 0
    ids: set[bytes] = field(default_factory=set)
    cuts: list[Cut] = field(default_factory=list)
    errors: list[InputError] = field(default_factory=list)
    errors_unreported: int = 0

    def check(self, line: Line) -> None:
        self._cut(line)
        self.rows += 1
        try:
            row = parse_object(line.data)
            self._check_envelope(row)
            self._check_body(row["body"])
        except BadLine as error:
            self._add(InputError("invalid_json_line", _sentence(error.message), line.number))
        except _Problem as error:
            self._add(InputError(error.code, error.message, line.number, error.param))

    def too_many_rows(self, line: Line) -> None:
        message = f"The file has more than {self.limits.rows_max} requests."
        self._add(InputError("too_many_requests_in_file", message, line.number))

    def report(self) -> ValidationReport:
        if self.rows == 0:
            self._add(InputError("empty_file", "The file has no requests."))
        if self.errors_unreported:
            more = f"{self.errors[-1].message} {self.errors_unreported} more lines have errors."
            self.errors[-1] = replace(self.errors[-1], message=more)
        return ValidationReport(self.rows, self.model, tuple(self.cuts), tuple(self.errors))

    def _cut(self, line: Line) -> None:
        last = self.cuts[-1] if self.cuts else None
        if (
            last is None
            or line.offset - last.offset >= self.limits.shard_bytes
            or self.rows - last.first_row >= self.limits.shard_rows
        ):
            self.cuts.append(Cut(line.offset, self.rows))

    def _add(self, error: InputError) -> None:
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(error)
        else:
            self.errors_unreported += 1

    def _check_envelope(self, row: JsonObject) -> None:
        for name in ("custom_id", "method", "url", "body"):
            if row.get(name) is None:
                raise _Problem("missing_required_parameter", f"'{name}' is missing.", name)
        self._check_id(row["custom_id"])
        if row["method"] != "POST":
            raise _Problem(
                "invalid_method", f"'method' must be POST, not {_quoted(row['method'])}.", "method"
            )
        if row["url"] != self.endpoint.value:
            message = f"'url' must be the batch's endpoint, {self.endpoint.value}, not {_quoted(row['url'])}."
            raise _Problem("invalid_url", message, "url")
        if not isinstance(row["body"], dict):
            raise _Problem("missing_required_parameter", "'body' must be an object.", "body")

    def _check_id(self, custom_id: Any) -> None:
        if not is_custom_id(custom_id):
            message = (
                f"'custom_id' must be a text of 1 to {CUSTOM_ID_CHARS_MAX} characters, none of them NUL."
            )
            raise _Problem("missing_required_parameter", message, "custom_id")
        digest = blake2b(custom_id.encode(errors="surrogatepass"), digest_size=ID_DIGEST_BYTES).digest()
        if digest in self.ids:
            message = f"The custom_id {custom_id!r} was used by an earlier line."
            raise _Problem("duplicate_custom_id", message, "custom_id")
        self.ids.add(digest)

    def _check_body(self, body: JsonObject) -> None:
        self._check_model(body.get("model"))
        if body.get("stream"):
            raise _Problem("invalid_value", "'stream' is not possible in a batch.", "body.stream")
        if self.endpoint is Endpoint.CHAT and not isinstance(body.get("messages"), list):
            raise _Problem("missing_required_parameter", "'messages' must be a list.", "body.messages")
        if self.endpoint is Endpoint.COMPLETIONS and body.get("prompt") is None:
            raise _Problem("missing_required_parameter", "'prompt' is missing.", "body.prompt")
        if self.endpoint is Endpoint.EMBEDDINGS:
            self._count_embedding_inputs(body.get("input"))

    def _check_model(self, model: Any) -> None:
        if not isinstance(model, str) or not model:
            raise _Problem("missing_required_parameter", "'model' is missing.", "body.model")
        if len(model) > MODEL_CHARS_MAX:
            raise _Problem("model_not_found", f"No model is called {_quoted(model)}.", "body.model")
        if self.model is None:
            wrong = self.serves(model)
            if wrong is not None:
                raise _Problem(wrong.code, wrong.message, "body.model")
            self.model = model
        if model != self.model:
            message = (
                f"All lines of a file must ask for one model: {_quoted(model)} after {_quoted(self.model)}."
            )
            raise _Problem("mismatched_model", message, "body.model")

    def _count_embedding_inputs(self, value: Any) -> None:
        try:
            self.embedding_inputs += len(embedding_inputs(value))
        except (ValueError, InvalidRequest) as error:
            raise _Problem("missing_required_parameter", f"{error}.", "body.input") from error
        if self.embedding_inputs > self.limits.embedding_inputs_max:
            message = f"The file has more than {self.limits.embedding_inputs_max} embedding inputs."
            raise _Problem("too_many_requests_in_file", message, "body.input")


def _quoted(value: Any) -> str:
    """Somebody's value for a message, cut to a length a message can have."""
    quoted = repr(value)
    return quoted if len(quoted) <= QUOTED_CHARS_MAX else quoted[:QUOTED_CHARS_MAX] + "…"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
