import builtins
import socket
from typing import Any

import pytest

from conformance import runner
from conformance.outcomes import Outcome, Report, Result
from tests.helpers.altering_proxy import Reply, answering

JSON = {"content-type": "application/json"}
MISSING = Reply(404, JSON, b'{"error": {"message": "no", "type": "x", "param": null, "code": null}}')


def result(outcome: Outcome) -> Result:
    return Result("files", "pages", "pages", outcome, 0.5, "" if outcome is Outcome.PASSED else "no")


@pytest.mark.parametrize(
    ("outcome", "strictly", "leniently"),
    [
        (Outcome.PASSED, 0, 0),
        (Outcome.SKIPPED, 0, 0),
        (Outcome.NOT_OFFERED, 1, 0),
        (Outcome.FAILED, 1, 1),
    ],
)
def test_what_is_not_offered_fails_only_strictly(outcome: Outcome, strictly: int, leniently: int) -> None:
    report = Report("3.52.0", [result(Outcome.PASSED), result(outcome)])
    assert report.exit_code(is_strict=True) == strictly
    assert report.exit_code(is_strict=False) == leniently


def test_what_a_server_does_not_offer_is_reported_and_strict_counts_it_as_failed(nightshift):
    with answering(lambda request: MISSING) as url:
        only = ("conformance", "--base-url", url, "--only", "files.pages")
        leniently, strictly = nightshift(*only, "--json"), nightshift(*only, "--strict")

    why = "GET /v1/files is answered with 404"
    assert leniently.code == 0
    assert leniently.json["counts"] == {"passed": 0, "failed": 0, "not_offered": 1, "skipped": 0}
    [told] = leniently.json["results"]
    assert (told["check"], told["detail"]) == ("files.pages", why)
    assert strictly.code == 1
    assert why in strictly.out
    assert "1 checks with openai" in strictly.err


def test_what_nightshift_has_beyond_openai_is_skipped_elsewhere_and_the_reason_is_named_once(nightshift):
    models = b'{"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "a stranger"}]}'
    with answering(lambda request: Reply(200, JSON, models)) as url:
        ended = nightshift("conformance", "--base-url", url, "--only", "nightshift")

    assert ended.code == 0
    assert ended.err.count("owned_by nightshift") == 1
    assert "SKIPPED 12 checks" in ended.err


def test_a_server_that_is_not_there_is_exit_code_69(nightshift):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/v1"
    ended = nightshift("conformance", "--base-url", url)

    assert ended.code == 69
    assert "cannot be reached" in ended.err


def test_a_key_that_is_refused_is_exit_code_69(nightshift):
    with answering(lambda request: Reply(401, JSON, b'{"error": {"message": "no such key"}}')) as url:
        ended = nightshift("conformance", "--base-url", url, "--api-key", "sk-x")

    assert ended.code == 69
    assert "refuses the API key" in ended.err


def test_a_check_that_does_not_exist_is_exit_code_2_and_the_areas_are_named(nightshift):
    ended = nightshift("conformance", "--base-url", "http://127.0.0.1:1/v1", "--only", "fils")

    assert ended.code == 2
    assert "fils" in ended.err
    assert "files" in ended.err


def test_without_the_official_client_it_says_how_to_install_it(nightshift, monkeypatch):
    imports = builtins.__import__

    def without_openai(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "openai":
            raise ModuleNotFoundError(name)
        return imports(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_openai)
    ended = nightshift("conformance", "--base-url", "http://127.0.0.1:1/v1")

    assert ended.code == 2
    assert "pip install ./conformance" in ended.err


def test_a_check_that_never_ends_is_left_alone_past_its_limit():
    from threading import Event

    ends = Event()
    error = runner.within(0.01, lambda: ends.wait() and None)
    ends.set()

    assert isinstance(error, TimeoutError)
    assert runner.verdict(error)[0] is Outcome.FAILED
