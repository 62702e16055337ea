"""The processes in which objects are decoded: how they end, and what they are given."""

import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pyarrow as pa
import pytest

from nightshift.bulk.rows.columns import column_reader, decoder, messages
from nightshift.bulk.rows.columns.column_reader import KILLS_MAX
from nightshift.bulk.rows.columns.decoder import Decoder, DecodingKilled, decoding_process
from nightshift.bulk.rows.columns.messages import BATCH, MESSAGE_BYTES_MAX, Channel, TooLargeMessage
from nightshift.bulk.rows.inputs import UnreadableInput
from nightshift.errors import StorageUnavailable
from nightshift.objectstore import ObjectChanged, ObjectStore
from tests.unit.nightshift.bulk.rows.columns.tables import parquet, rows_of

CONTENT = parquet(pa.table({"n": range(100_000)}))
ROWS = {"what": "rows", "names": ["n"], "groups": [0, None], "row_bytes_max": 1000}


def fetch(start: int, end: int) -> Iterator[bytes]:
    yield CONTENT[start:end]


def opened() -> tuple[Decoder, int]:
    """An object that is open, and the process that decodes it."""
    before = children()
    opened_object = Decoder("parquet", len(CONTENT), fetch)
    [process] = children() - before
    return opened_object, process


def children() -> set[int]:
    starter = decoding_process.id
    if starter is None:
        return set()
    return set(map(int, Path(f"/proc/{starter}/task/{starter}/children").read_text().split()))


def wait_for_end(process: int) -> None:
    """Returns at once for a process that has ended."""
    try:
        ended = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        select.select([ended], [], [])
    finally:
        os.close(ended)


@pytest.mark.parametrize(
    ("number", "error", "why"),
    [
        (
            *(signal.SIGSEGV, UnreadableInput),
            r"ended the process .* \(SIGSEGV\): it is damaged, or takes more than \d+ bytes",
        ),
        (signal.SIGABRT, UnreadableInput, r"\(SIGABRT\)"),
        (signal.SIGXCPU, UnreadableInput, r"takes more than 30 s of CPU time"),
        (signal.SIGKILL, StorageUnavailable, "SIGKILL"),  # no limit of its own kills it: worth another try
    ],
)
def test_an_object_whose_decoding_ends_the_process_cannot_be_read_unless_it_was_killed(
    number: int, error: type[Exception], why: str
) -> None:
    opened_object, process = opened()

    with closing(opened_object):
        os.kill(process, number)
        with pytest.raises(error, match=why):
            list(opened_object.answers(ROWS))


def test_an_object_whose_process_is_killed_again_and_again_cannot_be_read(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one still can."""

    def killed(*arguments: object) -> None:
        raise DecodingKilled("killed")

    monkeypatch.setattr(column_reader, "_kills", Counter())
    with monkeypatch.context() as patched:
        patched.setattr(Decoder, "answers", killed)
        for _ in range(KILLS_MAX - 1):
            with pytest.raises(StorageUnavailable):
                rows_of(store, CONTENT, "parquet")
        with pytest.raises(
            UnreadableInput, match=f"^k cannot be read .*killed That happened {KILLS_MAX} times"
        ):
            rows_of(store, CONTENT, "parquet")
        with pytest.raises(StorageUnavailable):
            rows_of(store, CONTENT[:-1], "parquet")


def test_a_message_is_refused_that_says_it_is_too_large() -> None:
    """Before memory is taken for it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack("<cQ", BATCH, MESSAGE_BYTES_MAX + 1))
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(TooLargeMessage):
            Channel(ours).receive()


def test_an_object_of_too_large_a_message_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    opened_object, _ = opened()
    monkeypatch.setattr(messages, "MESSAGE_BYTES_MAX", 100)

    with closing(opened_object), pytest.raises(UnreadableInput, match="more than 100"):
        list(opened_object.answers(ROWS))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_ends_the_service_does_not_make_an_object_unreadable(number: int) -> None:
    opened_object, process = opened()

    with closing(opened_object):
        os.kill(process, number)
        os.kill(decoding_process.id or 0, number)
        assert b"".join(kind for kind, _ in opened_object.answers(ROWS)).endswith(b"d")


def test_a_process_ends_when_its_object_is_closed() -> None:
    opened_object, process = opened()
    answers = opened_object.answers(ROWS)
    next(answers)

    opened_object.close()

    wait_for_end(process)


def test_what_the_store_raises_is_raised_and_fewer_bytes_than_planned_are_cut_short() -> None:
    def changed(start: int, end: int) -> Iterator[bytes]:
        raise ObjectChanged("it is another one now")

    with pytest.raises(ObjectChanged):
        Decoder("parquet", len(CONTENT), changed)
    with pytest.raises(UnreadableInput, match="cut short"):
        Decoder("parquet", len(CONTENT) + 100, fetch)


def test_another_process_is_started_in_place_of_one_that_was_killed() -> None:
    """Only those that were being started are lost, and worth another try."""
    opened_object, _ = opened()
    with closing(opened_object):
        before = decoding_process.id
        assert before is not None
        os.kill(before, signal.SIGKILL)
        wait_for_end(before)

        assert list(opened_object.answers(ROWS))
    with suppress(StorageUnavailable):
        opened()[0].close()
    opened()[0].close()
    assert decoding_process.id not in (None, before)


def test_a_process_that_cannot_start_is_worth_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    decoding_process.end()
    monkeypatch.setattr(decoder, "COMMAND", ("/nowhere/python",))

    with pytest.raises(StorageUnavailable, match="cannot start"):
        Decoder("parquet", len(CONTENT), fetch)

    monkeypatch.undo()
    opened()[0].close()


def test_credentials_are_kept_from_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
    decoding_process.end()

    opened_object, process = opened()

    with closing(opened_object):
        names = re.findall(rb"([A-Z_]+)=", Path(f"/proc/{process}/environ").read_bytes())
    assert b"PATH" in names
    assert b"AWS_SECRET_ACCESS_KEY" not in names


PROGRAM = """
import os
from tests.unit.nightshift.bulk.rows.columns.test_decoder import opened
opened_object, process = opened()
print(process, flush=True)
os._exit(0)
"""


def test_processes_end_with_the_one_that_reads() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)

    wait_for_end(int(ended.stdout))


LIST_IMPORTS = """
import sys
import nightshift.bulk.rows.columns.decoding_process
print(*(name for name in sys.modules if name.startswith("nightshift.") and "columns" not in name))
"""


def test_the_process_imports_nothing_else_of_the_service() -> None:
    """It starts fast, and a file that takes it over finds no code that opens stores or databases."""
    command = [sys.executable, "-c", LIST_IMPORTS]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)

    assert listed.stdout.split() == ["nightshift.bulk", "nightshift.bulk.rows"]
