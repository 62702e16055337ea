"""Validates a whole OpenAI batch file before its rows run, and cuts it into shards at row boundaries.

Checks that it is JSONL, each line is a request of the endpoint, and ids are unique. Errors that need the
model, such as a prompt that is too long, are found when the row runs.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final

from nightshift.bulk.rows.requests import (
    QUOTED_CHARS_MAX,
    check_custom_id,
    check_target,
    quoted,
    refuse_stream,
)
from nightshift.bulk.rows.text.lines import BadLine, Line, NotJson, parse_object
from nightshift.endpoints import Endpoint
from nightshift.errors import InvalidRequest, UnknownModel
from nightshift.jobs import InputError, JsonObject

ERRORS_MAX: Final = 100  # the last message counts the others
ID_DIGEST_BYTES: Final = 16  # per row, to find duplicates without collisions
MODEL_CHARS_MAX: Final = 256
NOT_JSON: Final = "This line is not parseable as valid JSON."  # OpenAI's sentence
INCOMPLETE: Final = "invalid_request"  # OpenAI's code for a body without one of its required fields


@dataclass(frozen=True)
class FileLimits:
    """A file's limits, and the size of its shards."""

    rows_max: int
    embedding_inputs_max: int
    shard_bytes: int
    shard_rows: int


@dataclass(frozen=True)
class Cut:
    """The place where a shard begins."""

    offset: int
    first_row: int


@dataclass
class Cuts:
    """The shards of a file, as its rows are read."""

    limits: FileLimits
    cuts: list[Cut] = field(default_factory=list)

    def add(self, line: Line, row: int) -> None:
        last = self.cuts[-1] if self.cuts else None
        if (
            last is None
            or line.offset - last.offset >= self.limits.shard_bytes
            or row - last.first_row >= self.limits.shard_rows
        ):
            self.cuts.append(Cut(line.offset, row))


@dataclass(frozen=True)
class ValidationReport:
    """The errors and counts of a file. If there are errors, no row may run."""

    rows: int
    model: str | None
    cuts: tuple[Cut, ...]
    errors: tuple[InputError, ...]


def validate(
    lines: Iterable[Line], endpoint: Endpoint, serves: Callable[[str], InputError | None], limits: FileLimits
) -> ValidationReport:
    """Checks every line of a file. `serves` returns what is wrong with a model's id, or None.

    Holds one line, and a digest of each row's id: about 100 bytes a row, 5 MB for 50,000 rows.
    """
    validator = _Validator(endpoint, serves, limits)
    for line in lines:
        if is_blank(line):
            continue
        if validator.rows >= limits.rows_max:
            validator.too_many_rows(line)
            break
        validator.check(line)
    return validator.report()


def cut_rows(lines: Iterable[Line], begin: Cut, limits: FileLimits) -> tuple[tuple[Cut, ...], int]:
    """The shards of a valid file's lines from `begin` on, and the number of its rows."""
    cuts, rows = Cuts(limits), begin.first_row
    for line in lines:
        if not is_blank(line):
            cuts.add(line, rows)
            rows += 1
    return tuple(cuts.cuts), rows


def is_blank(line: Line) -> bool:
    return line.data is not None and not line.data.strip()


@dataclass
class _Validator:
    endpoint: Endpoint
    serves: Callable[[str], InputError | None]
    limits: FileLimits
    rows: int = 0
    model: str | None = None
    embedding_inputs: int = 0
    ids: set[bytes] = field(default_factory=set)
    cuts: Cuts = field(init=False)
    errors: list[InputError] = field(default_factory=list)
    errors_unreported: int = 0

    def __post_init__(self) -> None:
        self.cuts = Cuts(self.limits)

    def check(self, line: Line) -> None:
        self.cuts.add(line, self.rows)
        self.rows += 1
        try:
            self._check_body(self._check_envelope(parse_object(line.data)))
        except NotJson as error:
            hint = "" if error.hint is None else f" {_sentence(error.hint)}"
            self._add(InputError("invalid_json_line", f"{NOT_JSON}{hint}", line.number))
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
        return ValidationReport(self.rows, self.model, tuple(self.cuts.cuts), tuple(self.errors))

    def _add(self, error: InputError) -> None:
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(error)
        else:
            self.errors_unreported += 1

    def _check_envelope(self, row: JsonObject) -> JsonObject:
        for name in ("custom_id", "method", "url", "body"):
            if row.get(name) is None:
                raise InvalidRequest(f"'{name}' is missing.", param=name, code="missing_required_parameter")
        check_custom_id(row["custom_id"])
        self._check_is_new(row["custom_id"])
        check_target(row, self.endpoint.route)
        body = row["body"]
        if not isinstance(body, dict):
            raise InvalidRequest("'body' must be an object.", param="body", code="missing_required_parameter")
        return body

    def _check_is_new(self, custom_id: str) -> None:
        digest = blake2b(custom_id.encode(errors="surrogatepass"), digest_size=ID_DIGEST_BYTES).digest()
        if digest in self.ids:
            message = f"The custom_id {custom_id!r} was used by an earlier line."
            raise InvalidRequest(message, param="custom_id", code="duplicate_custom_id")
        self.ids.add(digest)

    def _check_body(self, body: JsonObject) -> None:
        self._check_model(body.get("model"))
        refuse_stream(body)
        try:
            self.embedding_inputs += self.endpoint.check_line(body)
        except InvalidRequest as error:
            code = INCOMPLETE if error.code == "missing_required_parameter" else error.code
            raise InvalidRequest(error.message, param=f"body.{error.param}", code=code) from error
        if self.embedding_inputs > self.limits.embedding_inputs_max:
            message = f"The file has more than {self.limits.embedding_inputs_max} embedding inputs."
            raise InvalidRequest(message, param="body.input", code="too_many_requests_in_file")

    def _check_model(self, model: Any) -> None:
        if not isinstance(model, str) or not model:
            raise _wrong_model(INCOMPLETE, "'model' is missing.")
        if len(model) > MODEL_CHARS_MAX:
            message = UnknownModel.called(f"{model[:QUOTED_CHARS_MAX]}…").message
            raise _wrong_model("model_not_found", message)
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
