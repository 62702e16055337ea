"""Calls over tables, against a service with state: what is sent, when it is sent, and what comes back."""

import asyncio
import logging
import threading
from typing import Any

import httpx
import pandas
import pytest

from nightshift.client import AsyncClient, Client, MapFailed, http_client
from nightshift.errors import InvalidRequest
from tests.unit.nightshift.client.mapping.fake_service import FakeService

ROWS = [{"id": "a", "text": "one"}, {"id": "b", "text": "two"}]
PROMPT = "Say: {{text}}"


def mapped(client: Client, rows: object = ROWS, prompt: str = PROMPT, **options: Any) -> Any:
    return client.map(rows, prompt, **{"model": "m", "key": "id", "name": "calls"} | options)


def test_rows_come_back_in_their_order_with_an_answer_each(client, service):
    result = mapped(client)

    assert result.data == [ROWS[0] | {"answer": "SAY: ONE"}, ROWS[1] | {"answer": "SAY: TWO"}]
    assert result.failed == []
    [body] = service.submitted
    assert body["template"] == {"model": "m", "messages": [{"role": "user", "content": PROMPT}]}
    assert "output" not in body


def test_only_columns_that_the_prompt_names_leave_the_machine(client, service):
    mapped(client, [{"id": "a", "text": "one", "secret": object()}])
    assert service.rows(service.jobs[0]) == [{"_row": "a", "text": "one"}]


def test_a_system_prompt_and_parameters_are_part_of_the_request(client, service):
    mapped(client, system="Be {{id}}.", parameters={"temperature": 0, "max_tokens": 9})
    [body] = service.submitted
    assert body["template"]["messages"][0] == {"role": "system", "content": "Be {{id}}."}
    assert (body["template"]["temperature"], body["template"]["max_tokens"]) == (0, 9)


def test_the_same_call_sends_nothing_again_and_has_the_same_answers(client, service):
    first, again = mapped(client), mapped(client)
    assert (len(service.jobs), len(service.files)) == (1, 1)
    assert first.data == again.data


def test_a_call_without_a_name_is_known_by_itself(client, service):
    mapped(client, name=None)
    mapped(client, name=None)
    mapped(client, name=None, prompt="Shout: {{text}}")
    assert len({job["name"] for job in service.jobs}) == len(service.jobs) == 2


def test_changed_rows_are_a_new_run_that_reuses_the_one_before(client, service):
    mapped(client)
    mapped(client, [ROWS[0], {"id": "b", "text": "other"}])

    new, old = service.submitted
    assert "reuse" not in old
    assert (new["reuse"], new["reuse_sampled"]) == (service.jobs[1]["id"], True)
    assert new["date"] != old["date"]


def test_a_call_that_runs_is_taken_up_and_not_begun_again(client, service):
    handle = mapped(client, wait=False)
    assert mapped(client, wait=False).job_id == handle.job_id
    assert len(service.jobs) == 1


def test_a_call_with_rows_that_failed_runs_them_again(client, service):
    rows = [*ROWS, {"id": "c", "text": "bad"}]
    first = mapped(client, rows)
    mapped(client, rows)

    assert first.data[2]["answer"] is None
    assert [(row.key, row.code, row.message) for row in first.failed] == [
        ("c", "context_length_exceeded", "It is too long.")
    ]
    again, before = service.submitted
    assert again["reuse"] == service.jobs[1]["id"]
    assert before["date"].removesuffix("-1") == again["date"].removesuffix("-2")


@pytest.mark.parametrize("gone", [{"results_deleted_at": 1}, {"status": "cancelled"}, {"status": "failed"}])
def test_a_call_whose_answers_are_not_all_there_is_begun_again(client, service, gone):
    mapped(client)
    service.end(**gone)
    mapped(client)
    assert len(service.jobs) == 2


def test_a_job_that_is_being_cancelled_is_not_taken_up(client, service):
    mapped(client, wait=False)
    service.end(stop_requested_at=1)
    mapped(client, wait=False)
    assert len(service.jobs) == 2


def test_of_the_runs_since_the_last_success_the_one_with_most_answers_is_reused(client, service):
    def run(text: str, state: str, succeeded: int) -> str:
        mapped(client, [{"id": "a", "text": text}], wait=False)
        service.end(status=state, counts={"total": 100, "succeeded": succeeded, "failed": 0})
        return str(service.jobs[0]["id"])

    run("1", "succeeded", 100)
    good = run("2", "succeeded", 90)
    run("3", "failed", 10)
    run("4", "running", 99)
    assert run("5", "cancelled", 91) != good
    run("6", "failed", 0)
    assert service.submitted[0]["reuse"] == "job_4"
    service.jobs[1].update(counts={"total": 100, "succeeded": 9, "failed": 0})
    run("7", "failed", 0)
    assert service.submitted[0]["reuse"] == good


def test_two_processes_that_begin_the_same_call_at_once_have_one_job(client, service):
    service.before_submission = lambda: mapped(client, wait=False) and None
    handle = mapped(client, wait=False)
    assert [job["id"] for job in service.jobs] == [handle.job_id]


def test_a_name_that_stands_for_another_call_is_refused_with_the_difference(client, service):
    mapped(client)
    sent = len(service.files)
    for other, said in (
        ({"prompt": "Shout: {{text}}"}, "another prompt"),
        ({"model": "n"}, "another model"),
        ({"key": None}, "another key"),
        ({"output_schema": {"type": "object", "properties": {"a": {}}}}, "another output_schema"),
        ({"parameters": {"temperature": 0}}, "another value of parameters"),
    ):
        with pytest.raises(InvalidRequest, match=said) as refused:
            mapped(client, **other)
        assert (refused.value.param, refused.value.code) == ("name", "name_in_use")
    assert len(service.files) == sent


def test_a_name_of_a_job_that_no_map_made_is_refused(client, service):
    service.add({"name": "calls", "date": "2026-11-20", "input": "s3://in/x.csv"})
    for use in (lambda: mapped(client), lambda: client.attach("calls")):
        with pytest.raises(InvalidRequest, match="not made by map"):
            use()


def test_a_large_file_is_sent_in_parts(client, service, monkeypatch):
    monkeypatch.setattr(http_client, "PART_BYTES", 10)
    mapped(client)
    assert len(service.parts) == 6
    assert [row["text"] for row in service.rows(service.jobs[0])] == ["one", "two"]


def test_results_go_on_where_their_stream_broke(client, service):
    service.rows_per_stream = 2
    rows = [{"id": str(place), "text": str(place)} for place in range(9)]
    assert [row["answer"] for row in mapped(client, rows).data] == [f"SAY: {place}" for place in range(9)]


@pytest.mark.parametrize("step", ["parts", "complete", "results"])
def test_a_server_that_restarts_while_it_is_worked_with_is_waited_for(service, step):
    away = [httpx.ConnectError("refused")] * 9

    def restarting(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith(step) and away:
            raise away.pop()
        return service(request)

    transport = httpx.MockTransport(restarting)
    with Client("http://server", "ns_key", transport=transport, sleep=lambda _: None) as client:
        assert [row["answer"] for row in mapped(client).data] == ["SAY: ONE", "SAY: TWO"]
    assert not away


def test_another_process_attaches_by_the_name_and_joins_by_the_key(client, service):
    mapped(client, wait=False)

    handle = client.attach("calls")
    frame = pandas.DataFrame({"id": ["b", "new", "a"]})
    joined = handle.result(frame)

    assert sorted(row["id"] for row in handle.result().data) == ["a", "b"]
    assert joined.data["answer"].fillna("-").to_list() == ["SAY: TWO", "-", "SAY: ONE"]
    assert [(row.key, row.code) for row in joined.failed] == [("new", "not_run")]


def test_no_column_of_the_data_that_answers_are_joined_to_is_written_over(client, service):
    mapped(client, wait=False)
    with pytest.raises(InvalidRequest, match="a column 'answer' already"):
        client.attach("calls").result(pandas.DataFrame({"id": ["a"], "answer": ["mine"]}))


def test_without_a_key_rows_are_known_by_their_places(client, service):
    rows = [{"text": str(place)} for place in range(11)]
    mapped(client, rows, key=None, wait=False)
    attached = client.attach("calls")
    assert attached.result().data == [{"row": place, "answer": f"SAY: {place}"} for place in range(11)]
    assert attached.result(rows).data[10] == {"text": "10", "answer": "SAY: 10"}


def test_a_name_that_no_call_has_is_said(client):
    with pytest.raises(InvalidRequest, match="no call has the name 'nothing'"):
        client.attach("nothing")


@pytest.mark.parametrize("name", ["", None, 5])
def test_no_other_call_is_taken_up_for_want_of_a_name(client, service, name):
    mapped(client)
    with pytest.raises(InvalidRequest, match="give the name of a call") as refused:
        client.attach(name)
    assert refused.value.param == "name"


def test_a_job_that_did_not_succeed_is_an_error_unless_a_part_will_do(client, service):
    service.state = "expired"
    handle = mapped(client, wait=False)

    with pytest.raises(MapFailed, match=r"job_0 expired.*2 rows have answers"):
        handle.result()
    assert [row["answer"] for row in handle.result(partial=True).data] == ["SAY: ONE", "SAY: TWO"]


def test_a_call_is_cancelled_by_its_handle(client, service):
    service.is_holding = True
    handle = mapped(client, wait=False)
    assert handle.cancel().state == "cancelled"
    assert handle.status().state == "cancelled"


def test_answers_become_the_columns_of_the_schema(client, service):
    service.answer = lambda prompt: '{"n": 3, "of": null}' if "one" in prompt else '{"n": 3, "of": "…'
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "of": {"type": ["string", "null"]}}}

    result = mapped(client, output_schema=schema)

    assert result.data == [ROWS[0] | {"n": 3, "of": None}, ROWS[1] | {"n": None, "of": None}]
    [failed] = result.failed
    assert (failed.key, failed.code) == ("b", "invalid_answer")
    assert "max_tokens" in failed.message
    held = service.submitted[0]["template"]["response_format"]["json_schema"]
    assert held["schema"] == schema | {"additionalProperties": False}


def test_rows_at_a_location_go_to_a_folder_and_are_read_anew_by_each_call(client, service):
    place = {"rows": "s3://in/docs.parquet", "output": "s3://out/answers/"}
    result = mapped(client, **place)
    mapped(client, **place)

    assert result.data == "s3://out/answers/"
    assert service.files == {}
    assert [body["input"] for body in service.submitted] == ["s3://in/docs.parquet"] * 2
    assert (service.submitted[0]["id_column"], service.submitted[0]["format"]) == ("id", "parquet")


def test_a_problem_of_the_job_is_logged_once_where_there_is_no_terminal(client, service, caplog):
    handle = mapped(client, wait=False)
    service.end(problem={"code": "no_worker", "message": "No worker serves the model."})
    with caplog.at_level(logging.WARNING):
        handle.result()
    assert caplog.messages == ["calls waits: No worker serves the model."]


def async_client(service: FakeService) -> AsyncClient:
    return AsyncClient("http://server", "ns_key", transport=httpx.MockTransport(service))


def test_the_asynchronous_client_takes_the_same_steps(service: FakeService):
    async def mapped_rows() -> tuple[Any, Any]:
        async with async_client(service) as client:
            result = await client.map(ROWS, PROMPT, model="m", key="id", name="calls")
            handle = await client.attach("calls")
            assert (await handle.status()).state == "succeeded"
            await handle.cancel()
            return result, handle.job_id

    result, job_id = asyncio.run(mapped_rows())
    assert [row["answer"] for row in result.data] == ["SAY: ONE", "SAY: TWO"]
    assert result.job.id == job_id


def test_a_task_that_waits_for_a_call_ends_when_it_is_cancelled_and_its_job_goes_on(service: FakeService):
    service.is_holding = True

    async def cancelled() -> str:
        async with async_client(service) as client:
            handle = await client.map(ROWS, PROMPT, model="m", wait=False)
            looked_before = service.jobs[0]["looked_at"]
            waiting = asyncio.create_task(handle.result())
            while service.jobs[0]["looked_at"] == looked_before:
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            return str((await handle.status()).state)

    assert asyncio.run(cancelled()) == "running"


def test_a_client_that_is_closed_leaves_no_thread_that_tries_again():
    is_tried = threading.Event()

    def away(_: httpx.Request) -> httpx.Response:
        is_tried.set()
        return httpx.Response(503)

    async def closed() -> None:
        client = AsyncClient("http://server", "ns_key", transport=httpx.MockTransport(away))
        attaching = asyncio.create_task(client.attach("calls"))
        await asyncio.to_thread(is_tried.wait)
        await client.close()
        with pytest.raises(RuntimeError, match="closed"):
            await attaching

    asyncio.run(closed())


def test_a_terminal_shows_how_far_a_call_is(client, service, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    mapped(client, [*ROWS, {"id": "c", "text": "bad"}])
    shown = capsys.readouterr().err
    assert "calls: 1 failed" in shown
    assert "3/3" in shown

    mapped(client, [ROWS[0]], progress=False)
    assert capsys.readouterr().err == ""
