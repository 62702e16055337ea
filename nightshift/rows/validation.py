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

from nightshift.endpoints import Endpoint
from nightshift.errors import InvalidRequest
from nightshift.jobs import InputError, JsonObject
from nightshift.rows.lines import BadLine, Line, parse_object
from nightshift.rows.requests import check_envelope, quoted

ERRORS_MAX: Final = 100  # bad lines reported; the last one's message says how many more there are
ID_DIGEST_BYTES: Final = 16  # kept per row to find duplicates: two ids that differ never share one
MODEL_CHARS_MAX: Final = 256


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
            self._check_body(self._check_envelope(parse_object(line.data)))
        except BadLine as error:
            self._add(InputError("invalid_json_line", _sentence(error.message), line.number))
        except InvalidRequest as error:
            self._add(InputError(error.code or "invalid_value", error.message, line.number, error.param))

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

    def _check_envelope(self, row: JsonObject) -> JsonObject:
        for name in ("custom_id", "method", "url", "body"):
            if row.get(name) is None:
                raise InvalidRequest(f"'{name}' is missing.", param=name, code="missing_required_parameter")
        body = check_envelope(row, self.endpoint.route)
        self._check_is_new(row["custom_id"])
        return body

    def _check_is_new(self, custom_id: str) -> None:
        digest = blake2b(custom_id.encode(errors="surrogatepass"), digest_size=ID_DIGEST_BYTES).digest()
        if digest in self.ids:
            message = f"The custom_id {custom_id!r} was used by an earlier line."
            raise InvalidRequest(message, param="custom_id", code="duplicate_custom_id")
        self.ids.add(digest)

    def _check_body(self, body: JsonObject) -> None:
        self._check_model(body.get("model"))
        try:
            self.embedding_inputs += self.endpoint.check_line(body)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, param=f"body.{error.param}", code=error.code) from error
        if self.embedding_inputs > self.limits.embedding_inputs_max:
            message = f"The file has more than {self.limits.embedding_inputs_max} embedding inputs."
            raise InvalidRequest(message, param="body.input", code="too_many_requests_in_file")

    def _check_model(self, model: Any) -> None:
        if not isinstance(model, str) or not model:
            raise _wrong_model("missing_required_parameter", "'model' is missing.")
        if len(model) > MODEL_CHARS_MAX:
            raise _wrong_model("model_not_found", f"No model is called {quoted(model)}.")
        if self.model is None:
            wrong = self.serves(model)
            if wrong is not None:
                raise _wrong_model(wrong.code, wrong.message)
            self.model = model
        if model != self.model:
            message = (
                f"All lines of a file must ask for one model: {quoted(model)} after {quoted(self.model)}."
            )
            raise _wrong_model("mismatched_model", message)


def _wrong_model(code: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, param="body.model", code=code)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
