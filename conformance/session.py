"""The tools of a check: a client, the server's models, and a list of what it has to delete again."""

import json
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from threading import Lock
from typing import Any, Final

import httpx
import openai

from conformance.expectations import NotOffered, Skipped, Wrong, expect, expect_id, shown

MODELS_TRIED_MAX: Final = 20  # listed models, until one answers
OWNER: Final = "nightshift"  # `owned_by` of the models of a server that is ours
LISTED_MAX: Final = 40  # objects of a list: its first pages, since it may have any number, or never end
MISSING_ROUTE: Final = frozenset({404, 405, 501})
ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})
PROMPT: Final = "7"  # any model has an answer to a number


@dataclass(frozen=True)
class Options:
    """The server's address, and how long checks wait for it. Times in seconds."""

    base_url: str
    api_key: str
    model: str | None = None
    embedding_model: str | None = None
    check_time_limit_s: float = 60.0
    batch_time_limit_s: float = 600.0
    poll_interval_s: float = 1.0
    settle_time_limit_s: float = 20.0  # for a cancelled batch to end, so that its files can be deleted
    retries: int = 2  # the client's own default

    def client(self) -> Any:
        """The official client. Not typed: its versions differ, and servers answer anything."""
        return openai.OpenAI(
            base_url=self.base_url,
            api_key=self.api_key,
            timeout=self.check_time_limit_s,
            max_retries=self.retries,
            http_client=openai.DefaultHttpxClient(verify=_certificates()),
        )


@cache
def _certificates() -> ssl.SSLContext:
    """Certificates for all clients: reading them takes longer than most checks."""
    return httpx.create_ssl_context()


class Once:
    """Values that several checks share: each is made once, and its failure is every check's failure."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Any, Exception | None]] = {}

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._made:
            self._made[name] = (None, Wrong(f"{name} did not come to an end in an earlier check"))
            try:
                self._made[name] = (make(), None)
            except (openai.OpenAIError, Wrong, NotOffered, Skipped) as error:
                self._made[name] = (None, error)
        value, failure = self._made[name]
        if failure is not None:
            raise failure
        return value

    def made(self, name: str) -> Any:
        """A value that was made; None if none was."""
        return self._made.get(name, (None, None))[0]


@dataclass
class CleanUp:
    """Objects created on the server, with the calls that delete them; the latest goes first."""

    _calls: list[tuple[str, Callable[[Any], object]]] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def add(self, name: str, delete: Callable[[Any], object]) -> None:
        with self._lock:
            self._calls.append((name, delete))

    @property
    def is_empty(self) -> bool:
        with self._lock:
            return not self._calls

    def take(self) -> tuple[str, Callable[[Any], object]] | None:
        with self._lock:
            return self._calls.pop() if self._calls else None


@dataclass
class Session:
    """The tools of one check; `shared` and `shared_clean_up` are the whole run's, `time_limit_s` is the
    check's.
    """

    options: Options
    client: Any
    shared: Once
    clean_up: CleanUp
    shared_clean_up: CleanUp
    time_limit_s: float

    def require(self, method: str, path: str) -> None:
        """Raises NotOffered if the whole route is missing."""
        self.shared.get(f"{method} {path}", lambda: self._probe(method, path))

    def require_nightshift(self) -> None:
        """Raises Skipped unless the server says that its models are Nightshift's."""
        self.shared.get("whose server it is", self._look_for_nightshift)

    @property
    def chat_model(self) -> str:
        return str(self.shared.get("a model for chats", self._find_chat_model))

    @property
    def embedding_model(self) -> str:
        return str(self.shared.get("a model for embeddings", self._find_embedding_model))

    def chat(self, **fields: Any) -> Any:
        return self.client.chat.completions.create(**(self.chat_body() | fields))

    def chat_body(self) -> dict[str, Any]:
        """A short chat, as a request's body has it."""
        messages = [{"role": "user", "content": PROMPT}]
        return {"model": self.chat_model, "messages": messages, "max_tokens": 16}

    def rows(self, count: int) -> bytes:
        """A batch file of chats, with the custom ids row-0, row-1 …"""
        body = self.chat_body()
        return b"".join(row_line(f"row-{number}", body) for number in range(count))

    def upload(self, content: bytes, name: str = "conformance.jsonl", *, is_shared: bool = False) -> Any:
        """A batch file, deleted after the check (after all of them if it is shared)."""
        return self.keep_file(self.client.files.create(file=(name, content), purpose="batch"), is_shared)

    def keep_file(self, file: Any, is_shared: bool = False) -> Any:
        """Delete the file afterwards. Returns it."""
        id = expect_id(getattr(file, "id", None), "an upload with the id")
        clean_up = self.shared_clean_up if is_shared else self.clean_up
        clean_up.add(id, lambda client: client.files.delete(id))
        return file

    def create_batch(self, file_id: str, *, is_shared: bool = False, **fields: Any) -> Any:
        """A batch, of chats unless `endpoint` is given, cancelled after the check.

        The files it writes are deleted after all checks.
        """
        body = {"endpoint": "/v1/chat/completions", "completion_window": "24h"} | fields
        return self.keep_batch(self.client.batches.create(input_file_id=file_id, **body), is_shared)

    def keep_batch(self, batch: Any, is_shared: bool = False) -> Any:
        """Cancel the batch afterwards. Returns it."""
        id = expect_id(getattr(batch, "id", None), "a created batch with the id")
        options = self.options
        self.shared_clean_up.add(f"files of {id}", lambda client: delete_outputs(client, id, options))
        clean_up = self.shared_clean_up if is_shared else self.clean_up
        clean_up.add(id, lambda client: cancel_unless_ended(client, id))
        return batch

    def wait_for_batch(self, batch_id: str) -> Any:
        """Poll until the batch has ended. Raises Wrong past the time limit for batches."""
        deadline_s = time.monotonic() + self.options.batch_time_limit_s
        while True:
            batch = self.client.batches.retrieve(batch_id)
            if batch.status in ENDED:
                return batch
            expect(
                time.monotonic() < deadline_s,
                f"leaves a batch of few rows {shown(batch.status)} for "
                f"{self.options.batch_time_limit_s:.0f} s (--batch-time-limit)",
                "ends it within the completion window",
            )
            self.pause_between_looks()

    def pause_between_looks(self) -> None:
        time.sleep(self.options.poll_interval_s)

    def _probe(self, method: str, path: str) -> None:
        client = self.client.with_options(max_retries=0)
        try:
            if method == "GET":
                client.get(path, cast_to=object)
            else:
                client.post(path, cast_to=object, body={})
        except openai.APIStatusError as error:
            if error.status_code in MISSING_ROUTE and error.code != "model_not_found":
                raise NotOffered(f"{method} /v1{path} is answered with {error.status_code}") from error
        except openai.OpenAIError:
            return  # something is there: the checks say what is wrong with it

    def _look_for_nightshift(self) -> None:
        owners = [getattr(model, "owned_by", None) for model in self._listed_models()]
        if OWNER not in owners:
            raise Skipped(
                "it is Nightshift's own, and no model that this server lists is owned_by nightshift"
            )

    def _listed_models(self) -> list[Any]:
        return list(islice(self.client.models.list(), MODELS_TRIED_MAX))

    def _find_chat_model(self) -> str:
        return self.options.model or self._first_that_answers(
            lambda model: self.client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": PROMPT}], max_tokens=1
            ),
            "chats",
            "--model",
        )

    def _find_embedding_model(self) -> str:
        return self.options.embedding_model or self._first_that_answers(
            lambda model: self.client.embeddings.create(model=model, input=PROMPT),
            "embeddings",
            "--embedding-model",
        )

    def _first_that_answers(self, ask: Callable[[str], object], what: str, option: str) -> str:
        listed = self._listed_models()
        for model in (model.id for model in listed if isinstance(getattr(model, "id", None), str)):
            try:
                ask(model)
            except openai.APIStatusError as error:
                expect(error.status_code < 500, f"answers {error.status_code} to {model}", "answers")
                continue
            return str(model)
        raise NotOffered(f"none of its {len(listed)} listed models answers {what}; {option} names one")


def row_line(custom_id: str, body: dict[str, Any], url: str = "/v1/chat/completions") -> bytes:
    """A line of a batch file."""
    row = {"custom_id": custom_id, "method": "POST", "url": url, "body": body}
    return json.dumps(row).encode() + b"\n"


def cancel_unless_ended(client: Any, batch_id: str) -> None:
    if client.batches.retrieve(batch_id).status not in ENDED:
        client.batches.cancel(batch_id)


def delete_outputs(client: Any, batch_id: str, options: Options) -> None:
    """Delete what a batch has written, once it has ended. Raises TimeoutError if it does not end."""
    deadline_s = time.monotonic() + options.settle_time_limit_s
    while (batch := client.batches.retrieve(batch_id)).status not in ENDED:
        if time.monotonic() >= deadline_s:
            raise TimeoutError(batch_id)
        time.sleep(options.poll_interval_s)
    for id in (batch.output_file_id, batch.error_file_id):
        if isinstance(id, str):
            client.files.delete(id)
