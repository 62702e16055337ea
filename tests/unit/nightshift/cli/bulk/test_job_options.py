"""Every option of bulk jobs, from the command line through the client and the API to where it is kept."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from api.app import create_app
from api.bodies import parsed
from api.bodies.jobs import JobCreate, options_json
from api.jobs.requests import bulk_job
from api.services.services import AppSettings
from nightshift.jobs import JobSpec, JsonObject
from nightshift.jobs.options import (
    OPTIONS,
    Choice,
    ColumnNames,
    Count,
    Duration,
    Kind,
    Option,
    Share,
    Size,
    Switch,
    Text,
)
from tests.unit.nightshift.cli.conftest import Command, FakeServer

DAY_S = 86_400
DOCS = Path(__file__).parents[5] / "docs"
RUN = ("run", "s3://in/docs.parquet", "--output", "s3://out/", "--endpoint", "embeddings")


def an_example(kind: Kind) -> tuple[list[str], Any]:
    """The words after an option of this kind, and the value that the API is sent and shows."""
    match kind:
        case Share():
            return ["0.25"], 0.25
        case Size(at_least):
            return [str(at_least)], at_least
        case Count(at_least):
            return [str(at_least + 1)], at_least + 1
        case Duration():
            return ["30s"], "30s"
        case Switch():
            return [], True
        case Choice(values):
            return [values[-1]], values[-1]
        case Text(pattern):
            (example, *_) = (word for word in ("job_1", "tab") if re.match(pattern, word))
            return [example], example
        case ColumnNames():
            return ['id,"a,b"'], ["id", "a,b"]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_an_option_is_on_the_command_line_in_requests_and_answers_and_kept(
    nightshift: Command, server: FakeServer, option: Option
) -> None:
    typed, sent = an_example(option.about.kind)
    flag = f"--{option.name.replace('_', '-')}"

    assert nightshift(*RUN, flag, *typed).code == 0

    [body] = server.submitted
    assert body[option.name] == sent
    spec = kept(body)
    assert getattr(spec.options, option.field) != option.default
    assert in_json(options_json(spec.options))[option.name] == sent
    assert (option.field in spec.options.settings()) == option.about.in_manifest


def test_an_option_that_is_not_given_is_not_sent_and_null_means_the_same(
    nightshift: Command, server: FakeServer
) -> None:
    nightshift(*RUN)

    [body] = server.submitted
    spec = kept(body)
    for option in OPTIONS:
        assert option.name not in body
        assert kept(body | {option.name: None}) == spec
        assert getattr(spec.options, option.field) == option.default


def test_every_option_is_documented(nightshift: Command) -> None:
    schemas = create_app(AppSettings()).openapi()["components"]["schemas"]
    helped = " ".join(nightshift("run", "--help").out.split())
    pages = " ".join(page.read_text() for page in DOCS.glob("*.md"))

    for option in OPTIONS:
        assert option.name in schemas["JobCreate"]["properties"]
        assert option.name in schemas["DescribedJob"]["required"]
        for name in ("BatchOptions", "JobRetry"):
            assert (option.name in schemas[name]["properties"]) == option.about.of_batches
        assert " ".join(option.about.help.split()) in helped
        assert f"`{option.name}`" in pages


def kept(body: JsonObject) -> JobSpec:
    """The job as the database gives it back."""
    spec = bulk_job("acme", parsed(JobCreate, body), body, DAY_S).spec
    read = JobSpec.from_json(in_json(spec.to_json()))
    assert read == spec
    return read


def in_json(value: Any) -> Any:
    return json.loads(json.dumps(value))
