"""Variables are known by name, and replaced by their values as they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.errors import InvalidRequest
from nightshift.schedules.variables import check_output, check_variables, replaced

VALUES = {"date": "2026-11-30", "run_id": "run_1", "previous_output": "s3://b/{{date}}/"}


def test_variables_are_replaced_wherever_they_are_and_values_are_not_read_again() -> None:
    assert replaced("a/{{date}}/{{ run_id }}/{{date}}", VALUES) == "a/2026-11-30/run_1/2026-11-30"
    assert replaced("{{previous_output}}x", VALUES) == "s3://b/{{date}}/x"


@given(st.text(st.characters(exclude_characters="{}")))
def test_text_without_variables_stays(text: str) -> None:
    assert replaced(text, VALUES) == text


@pytest.mark.parametrize("text", ["{{day}}", "{{}}", "{{ Date }}", "{{date:%Y}}"])
def test_an_unknown_variable_is_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_variables(text, "job.input")

    assert (refused.value.param, refused.value.code) == ("job.input", "unknown_variable")
    assert "{{date}}, {{run_id}}, {{previous_output}}" in refused.value.message


def test_an_output_differs_from_run_to_run_unless_it_may_be_overwritten() -> None:
    check_output("s3://b/{{date}}/", "job.output", overwrite=False)
    check_output("s3://b/{{run_id}}/", "job.output", overwrite=False)
    check_output("s3://b/latest/", "job.output", overwrite=True)
    check_output("s3://b/{{run_id}}/", "job.output", overwrite=False, is_daily=False)
    with pytest.raises(InvalidRequest, match="overwrite"):
        check_output("s3://b/latest/", "job.output", overwrite=False)
    with pytest.raises(InvalidRequest, match="a day has several runs"):
        check_output("s3://b/{{date}}/", "job.output", overwrite=False, is_daily=False)
