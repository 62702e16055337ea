"""Sends on what online requests produce, in batches: live text to the stream, answers to the database.

An answer is committed before it is announced, so that a client told of it finds it.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from nightshift.broker.token_streams import Delta, End, StreamWriter
from nightshift.endpoints.structured.calls import CallPart
from nightshift.errors import DatabaseUnavailable
from nightshift.jobs import Answer, JsonObject, OnlineClaim
from nightshift.lifecycle import transitions
from nightshift.process import failpoints
from nightshift.store import Store, Transaction
from nightshift.tenants.turns import TurnQueue
from workers.leases.heartbeat import Heartbeat

log = logging.getLogger(__name__)

PUBLISH_MAX: Final = 512  # entries sent in one go
DATABASE_RETRY_S: Final = 0.5


@dataclass(frozen=True)
class Text:
    shard_id: str
    choice: int
    offset: int  # in the answer, in characters
    text: str
    token_offset: int  # of its log-probabilities, in tokens
    logprobs: JsonObject | None
    thought_chars: int = 0  # of the thought before it

    @property
    def delta(self) -> Delta:
        """The delta with its offset, by which a reader notices a lost or repeated one."""
        data: JsonObject = {"index": self.choice, "offset": self.offset, "text": self.text}
        if self.thought_chars:
            data["thought_chars"] = self.thought_chars
        if self.logprobs is not None:
            data |= {"token_offset": self.token_offset, "logprobs": self.logprobs}
        return Delta(self.shard_id, data)


@dataclass(frozen=True)
class ThoughtText:
    """New text of the thought before an answer."""

    shard_id: str
    choice: int
    offset: int  # in the thought, in characters
    text: str

    @property
    def delta(self) -> Delta:
        return Delta(self.shard_id, {"index": self.choice, "thought": self.text, "offset": self.offset})


@dataclass(frozen=True)
class CallText:
    """New text of a call's arguments."""

    shard_id: str
    choice: int
    part: CallPart
    thought_chars: int = 0  # as of a text

    @property
    def delta(self) -> Delta:
        """A delta. It has no `text` where there is none, which readers take for content."""
        part = self.part
        data: JsonObject = {
            "index": self.choice,
            "call": part.index,
            "name": part.name,
            "after": part.after,
            "offset": part.offset,
            "arguments": part.text,
        }
        if self.thought_chars:
            data["thought_chars"] = self.thought_chars
        return Delta(self.shard_id, data)


@dataclass(frozen=True)
class _Ended:
    claim: OnlineClaim
    answer: Answer | None  # None: its job was told to stop
    on_settled: Callable[[], None]
    on_told: Callable[[], None]


_Live = Text | ThoughtText | CallText
_Entry = _Live | _Ended


class Publisher:
    """One thread for all requests of a worker, in turns of their tenants; its callers do not wait."""

    def __init__(
        self,
        store: Store,
        streams: StreamWriter,
        heartbeat: Heartbeat,
        retry_s: float = DATABASE_RETRY_S,
    ) -> None:
        self._store = store
        self._streams = streams
        self._heartbeat = heartbeat
        self._retry_s = retry_s
        self._outbox = TurnQueue[_Entry]()
        self._thread = threading.Thread(target=self._run, name="online", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Sends what is there, and ends."""
        self._outbox.close()
        if self._thread.is_alive():
            self._thread.join()

    def put(self, tenant_id: str, text: _Live) -> None:
        self._outbox.put(tenant_id, text)

    def end(
        self,
        claim: OnlineClaim,
        answer: Answer | None,
        on_settled: Callable[[], None],
        on_told: Callable[[], None] = lambda: None,
    ) -> None:
        """Tells the end of a request. Without an answer, the job was told to stop. `on_settled` is called on
        the publisher's thread once the end is recorded, or cannot be any more; `on_told` after its client has
        been told of it.
        """
        self._outbox.put(claim.job.tenant_id, _Ended(claim, answer, on_settled, on_told))

    def _run(self) -> None:
        while entries := self._outbox.take(PUBLISH_MAX):
            self._publish(entries)

    def _publish(self, entries: Sequence[_Entry]) -> None:
        """Live tokens first, then commit what has ended, then announce it."""
        self._write([entry.delta for entry in entries if isinstance(entry, _Live)])
        ended = [entry for entry in entries if isinstance(entry, _Ended)]
        recorded = self._record(ended)
        for entry in ended:
            self._heartbeat.release(entry.claim.lease)  # an unrecorded one runs out and is run again
            entry.on_settled()
        self._write([End(entry.claim.lease.shard_id) for entry in recorded])
        for entry in ended:
            entry.on_told()

    def _record(self, ended: Sequence[_Ended]) -> Sequence[_Ended]:
        """Commits what has ended while its lease is trusted. Returns what was committed.

        In one transaction, which waits for the disk once; in smaller ones while that fails: the database may
        refuse one answer, and a large transaction meets more conflicts.
        """
        recorded: list[_Ended] = []
        left, count = list(ended), len(ended)
        while left := [entry for entry in left if self._heartbeat.trusts(entry.claim.lease)]:
            part = left[:count]
            try:
                self._commit(part)
                recorded += part
            except DatabaseUnavailable as error:
                log.warning("answers wait", extra={"action": "answers_wait", "reason": error.message})
                time.sleep(self._retry_s)
                count = max(1, len(part) // 2)
                continue
            except Exception:
                if len(part) > 1:
                    count = len(part) // 2
                    continue
                log.exception("answer not recorded", extra={"action": "answer_lost"})
            left, count = left[len(part) :], 2 * count
        return recorded

    def _commit(self, ended: Sequence[_Ended]) -> None:
        """An answer whose lease is lost changes nothing."""

        def record(tx: Transaction) -> None:
            now = tx.now()
            for entry in ended:
                if entry.answer is not None:
                    transitions.record_answer(tx, entry.claim, entry.answer, now)
                elif tx.shards.stop_held(entry.claim.lease):
                    transitions.end_stopped_online(tx, tx.jobs.fetch(entry.claim.job.id), now)

        self._store.run(record)
        failpoints.hit("worker.answered")

    def _write(self, entries: Sequence[Delta | End]) -> None:
        if entries:
            self._streams.write(entries)
