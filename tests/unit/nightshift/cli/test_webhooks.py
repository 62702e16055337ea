"""`nightshift webhooks`: endpoints and deliveries, as the server is requests and as they are printed."""

import json

import httpx
import pytest

ENDPOINT = {
    "id": "whe_1",
    "object": "webhook_endpoint",
    "name": "pager",
    "url": "https://hooks.example/x",
    "event_types": ["job.*"],
    "signing_secret_hint": "whsec_…abc=",
    "created_at": 1_700_000_000,
    "nightshift": {"status": "disabled", "disabled_reason": "gone"},
}
DELIVERY = {
    "id": "dlv_1",
    "status": "dead",
    "event_type": "job.failed",
    "job_id": "job_1",
    "webhook_endpoint_id": "whe_1",
    "url": "https://hooks.example/x",
    "attempt_count": 10,
    "created_at": 1_700_000_000,
}
PATH = "/v1/webhook_endpoints"


@pytest.fixture
def requests(server):
    """The requests to the server: method, path, and body or query."""
    seen = []

    def answer(request):
        path = request.url.path
        body = json.loads(request.content) if request.content else dict(request.url.params)
        seen.append((request.method, path, body))
        if request.method == "GET":
            element = DELIVERY if path == "/v1/deliveries" else ENDPOINT
            return httpx.Response(200, json={"data": [element], "has_more": False, "last_id": element["id"]})
        if path.startswith(PATH) and path.endswith("/replay"):
            more = len(seen) == 1
            return httpx.Response(200, json={"replayed": 1000 if more else 7, "has_more": more})
        return httpx.Response(200, json=ENDPOINT | {"signing_secret": "whsec_new", "status_code": 204})

    server.instead = answer
    return seen


def test_endpoints_are_listed_with_why_they_are_disabled(nightshift, requests):
    out = nightshift("webhooks", "list").out
    assert all(word in out for word in ("whe_1", "pager", "disabled (gone)", "job.*", "2023-11-14 22:13:20Z"))
    assert nightshift("webhooks", "list", "--json").json == [ENDPOINT]


def test_adding_and_rotating_print_the_secret_alone(nightshift, requests):
    events = ("--event", "job.*", "--event", "batch.failed")
    added = nightshift("webhooks", "add", "https://hooks.example/x", *events)
    assert added.out == "whsec_new\n"
    assert nightshift("webhooks", "rotate", "whe_1").out == "whsec_new\n"
    nightshift("webhooks", "rotate", "whe_1", "--at-once")
    nightshift("webhooks", "add", "https://hooks.example/x", "--name", "pager")

    named = {"name": "https://hooks.example/x", "url": "https://hooks.example/x"}
    assert requests == [
        ("POST", PATH, named | {"event_types": ["job.*", "batch.failed"]}),
        ("POST", f"{PATH}/whe_1/rotate_secret", {"keep_old_secret_active_for_24_hours": True}),
        ("POST", f"{PATH}/whe_1/rotate_secret", {"keep_old_secret_active_for_24_hours": False}),
        ("POST", PATH, named | {"name": "pager", "event_types": ["*"]}),
    ]


def test_an_endpoint_is_tested_disabled_enabled_and_deleted(nightshift, requests):
    assert nightshift("webhooks", "test", "whe_1", "--event", "batch.failed").out == "204\n"
    for command in ("disable", "enable", "delete"):
        assert nightshift("webhooks", command, "whe_1").code == 0
    assert requests == [
        ("POST", f"{PATH}/whe_1/test", {"event_type": "batch.failed"}),
        ("POST", f"{PATH}/whe_1", {"nightshift": {"disabled": True}}),
        ("POST", f"{PATH}/whe_1", {"nightshift": {"disabled": False}}),
        ("DELETE", f"{PATH}/whe_1", {}),
    ]


@pytest.mark.parametrize(
    ("status_code", "is_taken"),
    [
        *((status_code, False) for status_code in (199, 300, 404, 503)),
        *((status_code, True) for status_code in (200, 299)),
    ],
)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_test_that_the_receiver_did_not_take_fails_with_its_status(
    nightshift, server, status_code, is_taken, options
):
    server.instead = lambda request: httpx.Response(200, json={"status_code": status_code})
    ended = nightshift("webhooks", "test", "whe_1", *options)
    assert ended.code == (0 if is_taken else 1)
    assert (f"whe_1 did not take the event: it answered {status_code}" in ended.err) is not is_taken
    assert str(status_code) in ended.out


def test_a_test_without_an_answer_fails_with_the_reason(nightshift, server):
    error = {"message": "The webhook endpoint gave no answer: it timed out", "code": "webhook_no_answer"}
    server.instead = lambda request: httpx.Response(400, json={"error": error})
    ended = nightshift("webhooks", "test", "whe_1")
    assert (ended.code, ended.err) == (1, "nightshift: The webhook endpoint gave no answer: it timed out\n")


def test_deliveries_are_listed_as_filtered(nightshift, requests):
    out = nightshift("webhooks", "deliveries", "--status", "dead", "--endpoint", "whe_1", "--limit", "5").out
    assert all(word in out for word in ("dlv_1", "dead", "job.failed", "job_1", "10"))
    [(_, _, query)] = requests
    assert query == {"status": "dead", "webhook_endpoint_id": "whe_1", "limit": "5"}


def test_a_window_is_replayed_to_its_end_and_deliveries_by_id(nightshift, requests):
    ended = nightshift("webhooks", "replay", "--endpoint", "whe_1", "--since", "2026-11-01")
    assert ended.err == "1007 dead letters are sent again\n"
    assert requests == [("POST", f"{PATH}/whe_1/replay", {"since": 1_793_491_200})] * 2
    requests.clear()

    nightshift("webhooks", "replay", "dlv_1", "dlv_2")
    assert [path for _, path, _ in requests] == ["/v1/deliveries/dlv_1/replay", "/v1/deliveries/dlv_2/replay"]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--endpoint", "whe_1"),
        ("--since", "2026-11-01"),
        ("dlv_1", "--endpoint", "whe_1", "--since", "2026-11-01"),
        ("dlv_1", "--until", "2026-11-01"),
    ],
)
def test_a_replay_names_either_deliveries_or_an_endpoint_and_a_time(nightshift, requests, options):
    assert nightshift("webhooks", "replay", *options).code == 2
    assert requests == []


def test_a_create_whose_outcome_is_unknown_is_not_repeated(nightshift, server):
    tries = []

    def breaks(request):
        tries.append(request)
        raise httpx.ReadTimeout("no answer")

    server.instead = breaks
    assert nightshift("webhooks", "add", "https://hooks.example/x").code != 0
    assert len(tries) == 1
