"""Every error of ours has a status, a type the official client knows, and an answer to "again?"."""

import inspect
import json

import pytest

from api.responses import errors as api_errors
from api.responses.errors import error_response, wants_page
from nightshift import errors
from nightshift.errors import NightshiftError

STATUSES = {
    errors.InvalidRequest: 400,
    errors.LocationNotAllowed: 400,
    errors.UnknownModel: 404,
    errors.RequestTooLarge: 413,
    errors.RequestTimedOut: 408,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.IdempotencyKeyReused: 422,
    errors.NotAuthenticated: 401,
    errors.TooManyRequests: 429,
    errors.StorageError: 500,
    errors.ObjectNotFound: 404,
    errors.StorageDenied: 500,
    errors.CredentialsRefused: 500,
    errors.StorageUnavailable: 503,
    errors.QueueUnavailable: 503,
    errors.DatabaseUnavailable: 503,
    errors.ConfigurationError: 500,
    api_errors.WaitedTooLong: 504,
    api_errors.RequestEnded: 409,
}


@pytest.mark.parametrize(("kind", "status"), STATUSES.items())
def test_an_error_is_answered_with_its_status(kind, status):
    answer = error_response(kind())
    error = json.loads(bytes(answer.body))["error"]

    assert answer.status_code == status
    assert error["message"] == kind().message
    assert (error["type"] == "server_error") == (status >= 500)


def test_an_error_that_quotes_the_caller_stays_short():
    answer = error_response(errors.InvalidRequest("x" * 10**6, param="x" * 10**6))

    error = json.loads(bytes(answer.body))["error"]
    assert (len(error["message"].encode()), len(error["param"].encode())) == (640, 128)
    assert error["message"].endswith("…")


def test_what_never_changes_is_not_asked_again_and_what_passes_is_asked_later():
    assert error_response(errors.Conflict()).headers["x-should-retry"] == "false"
    assert error_response(errors.TooManyRequests(retry_after_s=7)).headers["retry-after"] == "7"
    for away in (errors.DatabaseUnavailable(), errors.StorageUnavailable()):
        assert int(error_response(away).headers["retry-after"]) > 0


def test_every_error_there_is_has_an_answer():
    kinds = [
        kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, NightshiftError)
    ]
    assert len(kinds) > 15
    for kind in kinds:
        assert error_response(kind()).status_code >= 400


BROWSER = b"text/html,application/xhtml+xml"


@pytest.mark.parametrize(
    ("path", "accept", "root_path", "is_wanted"),
    [
        ("/ui/jobs", BROWSER, "", True),
        ("/ui/jobs", b"*/*", "", False),
        ("/v1/jobs", BROWSER, "", False),
        ("/night/v1/jobs", BROWSER, "/night", False),
        ("/night/ui/jobs", BROWSER, "/night", True),
        ("/v1", BROWSER, "", True),
    ],
)
def test_browsers_get_pages_but_at_the_apis_routes_also_behind_a_path(path, accept, root_path, is_wanted):
    scope = {"type": "http", "path": path, "root_path": root_path, "headers": [(b"accept", accept)]}

    assert wants_page(scope) == is_wanted
