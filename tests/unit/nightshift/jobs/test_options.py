"""How the options of a bulk job are stored: processes of the release before read and wrote them so."""

import json
from typing import Any

import pytest

from nightshift.jobs.options import (
    OPTIONS,
    BulkOptions,
    Choice,
    ColumnNames,
    Count,
    Duration,
    Option,
    Share,
    Switch,
)

STORED: dict[str, Any] = {
    "max_error_rate": 0.05,
    "max_failed_rows": 0,
    "max_tokens_total": 1000,
    "row_timeout_s": 30,
    "parts": {
        "part_bytes": 2**20,
        "part_rows": None,
        "keep_body": True,
        "embedding_dtype": "float16",
        "keep_columns": ["id", "meta.lang"],
    },
    "reuse": "latest",
    "reuse_sampled": True,
    "pool": "nightly",
}
OPTIONS_STORED = BulkOptions(
    max_error_rate=0.05,
    max_failed_rows=0,
    max_tokens_total=1000,
    row_timeout_s=30,
    part_bytes=2**20,
    keep_body=True,
    embedding_dtype="float16",
    keep_columns=("id", "meta.lang"),
    reuse="latest",
    reuse_sampled=True,
    pool="nightly",
)


def test_options_are_stored_as_the_release_before_reads_them() -> None:
    assert json.loads(json.dumps(OPTIONS_STORED.to_json())) == STORED


def test_options_that_the_release_before_stored_are_read() -> None:
    assert BulkOptions.from_json({"endpoint": "/v1/embeddings", **STORED}) == OPTIONS_STORED


def test_a_job_that_was_stored_before_there_were_options_has_the_defaults() -> None:
    assert BulkOptions.from_json({"endpoint": "/v1/embeddings"}) == BulkOptions()


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_a_default_is_a_value_that_may_be_asked_for(option: Option) -> None:
    match option.about.kind:
        case Share() | Duration() | ColumnNames():
            assert option.default is None
        case Count(at_least, at_most):
            assert option.default is None or at_least <= option.default <= at_most
        case Switch():
            assert option.default is False
        case Choice(values):
            assert option.default is None or option.default in values


def test_what_decides_about_part_files_is_in_the_manifest() -> None:
    assert BulkOptions().of_parts().keys() <= BulkOptions().settings().keys()
