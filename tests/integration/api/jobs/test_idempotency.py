"""The jobs routes: a request that is sent again is accepted once."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.integration.api.asking import online


@pytest.mark.parametrize("count", ["9" * 5000, "-1", "0", "once"])
def test_a_count_of_retries_that_is_none_makes_no_repeat(http, bulk, count):
    headers = {"x-stainless-retry-count": count}
    answers = [http.post("/v1/jobs", json=bulk, headers=headers) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [202, 409]
    assert answers[1].json()["error"]["code"] == "output_in_use"
    assert answers[0].json()["id"] in answers[1].json()["error"]["message"]


def test_the_same_key_is_answered_with_the_same_job(http, bulk, store):
    headers = {"idempotency-key": "k1"}
    first, second = (http.post("/v1/jobs", json=bulk, headers=headers) for _ in range(2))

    assert (second.status_code, second.json()) == (first.status_code, first.json())
    replayed = [answer.headers.get("idempotent-replayed") for answer in (first, second)]
    assert replayed == [None, "true"]
    with store.snapshot() as tx:
        assert tx.holdings.total("default").bulk_jobs == 1


def test_the_same_key_with_another_request_is_refused(http, bulk):
    headers = {"idempotency-key": "k1"}
    http.post("/v1/jobs", json=bulk, headers=headers)
    answer = http.post("/v1/jobs", json=bulk | {"priority": "background"}, headers=headers)

    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "idempotency_key_reused"


def test_a_key_belongs_to_its_tenant(http, stranger, worker):
    headers = {"idempotency-key": "k1"}
    ours = http.post("/v1/jobs", json=online(), headers=headers)
    theirs = http.post("/v1/jobs", json=online(), headers=headers | stranger)

    assert theirs.status_code == 202
    assert theirs.json()["id"] != ours.json()["id"]


def test_a_refused_request_keeps_no_key(http, bulk):
    headers = {"idempotency-key": "k1"}
    refused = http.post("/v1/jobs", json=bulk | {"priority": "urgent"}, headers=headers)
    accepted = http.post("/v1/jobs", json=bulk, headers=headers)

    assert (refused.status_code, accepted.status_code) == (400, 202)


def test_a_run_of_the_same_name_and_date_is_one_job(http, bulk):
    run = bulk | {"name": "nightly", "date": "2026-11-20"}
    first, again = (http.post("/v1/jobs", json=run, headers={"idempotency-key": key}) for key in ("a", "b"))
    next_day = {"date": "2026-11-21", "output": f"{bulk['output']}21/"}
    tomorrow = http.post("/v1/jobs", json=run | next_day)
    other_input = http.post("/v1/jobs", json=run | {"input": str(bulk["input"]) + ".gz"})

    assert again.json()["id"] == first.json()["id"]
    assert tomorrow.json()["id"] != first.json()["id"]
    assert other_input.status_code == 422


def test_keys_of_no_length_or_too_much_are_refused(http, bulk):
    for key in ("", "k" * 256):
        answer = http.post("/v1/jobs", json=bulk, headers={"idempotency-key": key})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "Idempotency-Key"


def test_requests_with_one_key_at_the_same_time_make_one_job(http, bulk):
    def post(_: int) -> httpx.Response:
        return http.post("/v1/jobs", json=bulk, headers={"idempotency-key": "k1"})

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(post, range(8)))

    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
