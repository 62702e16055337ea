import httpx
import pytest

from nightshift.client import Client

LETTER = {
    "id": "dlq_1",
    "status": "dead",
    "job_id": "job_1",
    "custom_id": "row-7",
    "cause": "out_of_memory",
    "crashes": 3,
    "died_at": 1_700_000_000,
    "replay_job_id": None,
}


class DeadLetters:
    """/v1/dead_letters with one letter in it, about which is decided once."""

    def __init__(self) -> None:
        self.letter = dict(LETTER)
        self.requests: list[str] = []
        self.key_is_good = True

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(f"{request.method} {request.url.raw_path.decode()}")
        if not self.key_is_good:
            return refused(401, "Incorrect API key provided.")
        if request.method == "GET":
            return httpx.Response(200, json={"data": [self.letter], "has_more": False, "last_id": "dlq_1"})
        if not request.url.path.startswith("/v1/dead_letters/dlq_1/"):
            return refused(404, "No such DeadLetter object")
        if self.letter["status"] != "dead":
            return refused(409, f"Dead letter dlq_1 is {self.letter['status']} already.")
        is_replay = request.url.path.endswith("/replay")
        self.letter["status"] = "replayed" if is_replay else "discarded"
        self.letter["replay_job_id"] = "job_2" if is_replay else None
        return httpx.Response(200, json=self.letter)


def refused(status_code, message):
    error = {"message": message, "param": None, "code": None, "type": "invalid_request_error"}
    return httpx.Response(status_code, json={"error": error})


@pytest.fixture
def letters(monkeypatch):
    letters = DeadLetters()

    def connect():
        return Client("http://server", "ns_live_key", transport=httpx.MockTransport(letters))

    monkeypatch.setattr("nightshift.cli.dlq.open_client", connect)
    return letters


def test_dead_letters_are_listed_as_a_table_and_those_in_a_state_as_json(nightshift, letters):
    headings, line = nightshift("dlq", "list").out.splitlines()

    assert headings.split() == [
        "ID", "STATUS", "JOB", "ROW", "CAUSE", "CRASHES", "DIED", "REPLAYED", "AS"
    ]  # fmt: skip
    assert line.split()[:6] == ["dlq_1", "dead", "job_1", "row-7", "out_of_memory", "3"]
    assert "2023-11-14 22:13:20Z" in line

    assert nightshift("dlq", "list", "--status", "dead", "--json").json == [LETTER]
    assert "status=dead" in letters.requests[1]


@pytest.mark.parametrize(
    ("command", "done"), [("replay", "dlq_1 runs again as job_2"), ("discard", "dlq_1 is discarded")]
)
def test_a_letter_is_decided_once(nightshift, letters, command, done):
    ended = nightshift("dlq", command, "dlq_1")
    assert (ended.code, ended.err) == (0, f"{done}\n")

    ended = nightshift("dlq", "discard", "dlq_1")
    said = f"nightshift: Dead letter dlq_1 is {letters.letter['status']} already.\n"
    assert (ended.code, ended.out, ended.err) == (1, "", said)


def test_a_refusal_does_not_keep_the_others_from_being_decided(nightshift, letters):
    ended = nightshift("dlq", "discard", "dlq_2", "dlq_1", "dlq_1")

    assert ended.code == 1
    assert ended.err.splitlines() == [
        "nightshift: dlq_2: No such DeadLetter object; `nightshift dlq list` shows those there are",
        "dlq_1 is discarded",
        "nightshift: Dead letter dlq_1 is discarded already.",
    ]


def test_a_key_that_is_refused_is_not_tried_on_every_letter(nightshift, letters):
    letters.key_is_good = False
    ended = nightshift("dlq", "discard", "dlq_1", "dlq_2")

    assert (ended.code, ended.err) == (1, "nightshift: Incorrect API key provided.\n")
    assert len(letters.requests) == 1
