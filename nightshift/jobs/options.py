"""The options of bulk jobs, each declared once.

The fields of requests and answers (`api/bodies/jobs.py`), the options of `nightshift run`
(`nightshift/cli/bulk/job_options.py`), the stored job and the manifest's settings follow from `BulkOptions`.
A new option is a field of it, and the code that acts on it.
"""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, fields
from typing import Annotated, Any, Final, Literal, get_type_hints

from nightshift.fleet.workers import POOL_PATTERN

COUNT_MAX: Final = 2**53 - 1  # JSON's numbers are exact so far


@dataclass(frozen=True)
class Share:
    """A number from 0 to 1."""


@dataclass(frozen=True)
class Count:
    """A whole number, bounds included."""

    at_least: int
    at_most: int = COUNT_MAX


@dataclass(frozen=True)
class Size(Count):
    """Bytes. On the command line also `64MiB`."""


@dataclass(frozen=True)
class Duration:
    """Whole seconds. In requests, in answers and on the command line `30s`, `5m` or `1h`."""

    at_most_s: int


@dataclass(frozen=True)
class Switch:
    """A switch, off by default."""


@dataclass(frozen=True)
class Choice:
    """One of these texts."""

    values: tuple[str, ...]

    @property
    def type(self) -> Any:
        """`Literal` of them."""
        one_of: Any = Literal
        return one_of[self.values]


@dataclass(frozen=True)
class Text:
    """A text that matches a regular expression."""

    pattern: str


@dataclass(frozen=True)
class ColumnNames:
    """Names of columns, or `all`. On the command line a line of CSV."""


Kind = Share | Count | Duration | Switch | Choice | Text | ColumnNames


PART_BYTES: Final = 256 * 1024 * 1024
PART_BYTES_MIN: Final = 1024 * 1024
PART_BYTES_MAX: Final = 64 * 1024 * 1024 * 1024
ROW_TIMEOUT_MAX_S: Final = 86_400
KEEP_ALL: Final = "all"  # the columns of the row, whatever they are
KEPT_COLUMNS_MAX: Final = 1000
KEPT_NAMES_CHARS_MAX: Final = 32_768  # characters of all names, which every row repeats
INPUT_FORMATS: Final = ("jsonl", "csv", "tsv", "parquet", "arrow", "image", "delta")
DELTA: Final = "delta"  # of a table, whose objects are of Parquet
SEPARATOR_PATTERN: Final = r"""^(?:[^\w\s"']|\t|tab)$"""
REUSE_PATTERN: Final = r"^[0-9A-Za-z][0-9A-Za-z.:_+-]{0,63}$"  # latest, a date or a job

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

KeepColumns = tuple[str, ...] | Literal["all"]


@dataclass(frozen=True)
class About:
    """The declaration of an option beside its type and default."""

    kind: Kind
    help: str  # help on the command line
    metavar: str | None = None  # likewise
    _: KW_ONLY
    in_manifest: bool  # whether it decides about an answer or its form
    of_parts: bool = False  # whether jobs with the same part files have it in common
    of_batches: bool = False  # whether batches of the OpenAI routes have it, and a retry may change it


def _limit(kind: Kind, help: str, metavar: str) -> About:
    """A limit at which a job or a row is ended; a retry may change it."""
    return About(kind, help, metavar, in_manifest=False, of_batches=True)


def _of_parts(kind: Kind, help: str, metavar: str | None = None) -> About:
    """The form of an output's part files."""
    return About(kind, help, metavar, in_manifest=True, of_parts=True)


_PART_BYTES_HELP = "End a part after so many bytes of results: 64MiB.  [default: 256MiB]"
_KEEP_BODY_HELP = "In Parquet, put the whole answer beside its columns, as JSON."
_KEEP_COLUMNS_HELP = "Columns of the input to put beside each answer, or all of them."
_REUSE_HELP = "Take results of the same requests from an earlier run: of this --name, or a job."
_REUSE_SAMPLED_HELP = "With --reuse, take answers too that were drawn at random, without a seed."
_INPUT_FORMAT_HELP = "Format of every object of the input, whatever their names; delta: it is a Delta table."
_SEPARATOR_HELP = "Separator of CSV's values: ; or tab.  [default: as the records show]"
_EFFORT_HELP = "How much models think that can be told so, where a row does not say it: low, high, none, ..."
_POOL_HELP = "Run only on workers of this pool (NIGHTSHIFT_POOLS)."
_MAX_TOKENS_HELP = "Stop and fail once prompts and answers have more tokens than this."


@dataclass(frozen=True, kw_only=True)
class BulkOptions:
    """The options of a bulk job, as accepted. Online jobs have the defaults."""

    max_error_rate: Annotated[  # failed rows / rows
        float | None, _limit(Share(), "Stop and fail if more than this share of rows fails: 0.05.", "X")
    ] = None
    max_failed_rows: Annotated[
        int | None, _limit(Count(0), "Stop and fail if more rows than this fail.", "N")
    ] = None
    max_tokens_total: Annotated[int | None, _limit(Count(1), _MAX_TOKENS_HELP, "N")] = None
    row_timeout_s: Annotated[  # time in the engine; a row that takes longer fails
        int | None,
        _limit(Duration(ROW_TIMEOUT_MAX_S), "Time that a model may take for a row: 30s, 5m, 1h.", "TIME"),
    ] = None
    part_bytes: Annotated[  # size of stored results at which a part ends with its shard
        int, _of_parts(Size(PART_BYTES_MIN, PART_BYTES_MAX), _PART_BYTES_HELP, "SIZE")
    ] = PART_BYTES
    part_rows: Annotated[int | None, _of_parts(Count(1), "End a part after so many rows.", "N")] = None
    keep_body: Annotated[bool, _of_parts(Switch(), _KEEP_BODY_HELP)] = False
    embedding_dtype: Annotated[
        str, _of_parts(Choice(("float32", "float16")), "Type of vectors in Parquet.")
    ] = "float32"
    keep_columns: Annotated[KeepColumns | None, _of_parts(ColumnNames(), _KEEP_COLUMNS_HELP, "A,B|all")] = (
        None
    )
    input_format: Annotated[  # None: each object's own, by its name
        str | None, About(Choice(INPUT_FORMATS), _INPUT_FORMAT_HELP, in_manifest=True)
    ] = None
    separator: Annotated[
        str | None, About(Text(SEPARATOR_PATTERN), _SEPARATOR_HELP, "CHAR", in_manifest=True)
    ] = None
    reuse: Annotated[  # as asked; the manifest names the job that was found
        str | None, About(Text(REUSE_PATTERN), _REUSE_HELP, "latest|DATE|JOB", in_manifest=False)
    ] = None
    reuse_sampled: Annotated[bool, About(Switch(), _REUSE_SAMPLED_HELP, in_manifest=True)] = False
    reasoning_effort: Annotated[  # of rows that say none
        str | None, About(Choice(EFFORTS), _EFFORT_HELP, "EFFORT", in_manifest=True)
    ] = None
    pool: Annotated[str | None, About(Text(POOL_PATTERN), _POOL_HELP, "NAME", in_manifest=False)] = None

    def of_parts(self) -> dict[str, Any]:
        """Options that jobs with the same part files have in common."""
        return {option.field: getattr(self, option.field) for option in OPTIONS if option.about.of_parts}

    def settings(self) -> dict[str, Any]:
        """Options that a manifest names."""
        return {option.field: getattr(self, option.field) for option in OPTIONS if option.about.in_manifest}

    def to_json(self) -> dict[str, Any]:
        """The options that are set, in the stored form: those of parts by themselves."""
        known = dict(vars(self))
        parts = {option.field: known.pop(option.field) for option in OPTIONS if option.about.of_parts}
        return {key: value for key, value in known.items() if value is not None} | {"parts": parts}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "BulkOptions":
        """The options among what is stored of a job."""
        stored = data | data.get("parts", {})
        known = {key: value for key, value in stored.items() if key in cls.__dataclass_fields__}
        lists = {key: tuple(value) for key, value in known.items() if isinstance(value, list)}
        return cls(**known | lists)  # JSON has no tuples


@dataclass(frozen=True)
class Option:
    """A field of `BulkOptions`."""

    field: str
    type: Any
    default: Any
    about: About

    @property
    def name(self) -> str:
        """The option's name in requests and answers, where a duration names its unit itself."""
        return self.field.removesuffix("_s") if isinstance(self.about.kind, Duration) else self.field


def _declared() -> Iterator[Option]:
    types, annotated = get_type_hints(BulkOptions), get_type_hints(BulkOptions, include_extras=True)
    for field in fields(BulkOptions):
        [about] = annotated[field.name].__metadata__
        yield Option(field.name, types[field.name], field.default, about)


OPTIONS: Final = tuple(_declared())
