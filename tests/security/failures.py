"""Requests full of marker strings, for tests of what may be seen of them afterwards.

A marker names what it stands for, so a finding says what was shown: `mark-prompt-5b0c91`.
"""

import base64
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from tests.faults.kit.service import Service

CHAT: Final = "/v1/chat/completions"
TIMEOUT_S: Final = 10.0


def mark(what: str) -> str:
    return f"mark-{what}-5b0c91"


def webhook_secret() -> str:
    """One whose Base64 says nothing but that it is a marker."""
    return f"whsec_{base64.b64encode(mark('webhook-secret').encode()).decode()}"


def is_in(words: str, bodies: Sequence[bytes]) -> bool:
    """As they are, or in Base64, wherever in what was encoded they began."""
    raw = words.encode()
    # Of each beginning, the characters that no neighbour has a part in.
    encoded = [base64.b64encode(b"\0" * start + raw)[-(-start * 8 // 6) :] for start in range(3)]
    wanted = [raw, *(text.rstrip(b"=")[: len(raw) * 8 // 6 - 1] for text in encoded)]
    wanted += [text.translate(bytes.maketrans(b"+/", b"-_")) for text in wanted[1:]]
    return any(text in body for text in wanted for body in bodies)


KINDS: Final = (
    *("prompt", "system", "tool", "tool-argument", "schema", "row", "template", "column", "metadata"),
    *("custom-id", "filename", "user", "url-query", "idempotency-key", "wrong-key", "body-key", "unparsed"),
)
# Besides, in traces: logs may name an input, and a path that there is not.
TRACE_KINDS: Final = ("tracestate", "baggage", "user-agent", "forwarded", "path", "signature")
TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS: Final = {
    "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01",
    "tracestate": f"vendor={mark('tracestate')}",
    "baggage": f"user={mark('baggage')}",
    "user-agent": mark("user-agent"),
    "x-forwarded-for": mark("forwarded"),
}


def presigned() -> str:
    """The query of a URL that is a secret."""
    query = "?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={0}&X-Amz-Signature={0}&sig={0}&token={0}"
    return query.format(mark("signature"))


def encoded(body: object) -> bytes:
    """As JSON, with escapes for what is no character: httpx writes it as it is."""
    return json.dumps(body).encode()


def messages(words: str = "") -> list[dict[str, Any]]:
    """A conversation; `words` are for the fake engine."""
    return [
        {"role": "system", "content": mark("system")},
        {"role": "user", "content": f"{mark('prompt')} {words}"},
    ]


def tool_messages() -> list[dict[str, Any]]:
    """A conversation with a tool, which the fake engine's template refuses."""
    call = {"name": mark("tool"), "arguments": json.dumps({"value": mark("tool-argument")})}
    return [
        *messages(),
        {
            "role": "assistant",
            "content": mark("prompt"),
            "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": mark("tool-argument")},
    ]


def chat(words: str = "", **more: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": messages(words), "max_tokens": 24, "user": mark("user"), **more}


INVALID_BODIES: Final[Sequence[Mapping[str, Any]]] = (
    chat(temperature=mark("prompt")),
    chat(**{mark("body-key"): mark("prompt")}),
    chat(response_format={"type": "json_schema", "json_schema": {"name": 1, "schema": mark("schema")}}),
    chat(response_format={"type": mark("schema")}),
    chat(guided_json={"type": mark("schema")}),
    chat(guided_regex=f"({mark('schema')}"),
    chat(guided_grammar=f"start: {mark('schema')}"),
    chat(tools=[{"type": "function", "function": {"name": mark("tool"), "parameters": mark("schema")}}]),
    chat(tool_choice={"type": "function", "function": {"name": mark("tool")}}),
    chat(stop=[mark("prompt")] * 40),
    chat(logit_bias={mark("prompt"): mark("prompt")}),
    chat(metadata={mark("metadata"): [mark("metadata")]}),
    {**chat(), "messages": tool_messages()},
    {**chat(), "model": mark("prompt")},
    {**chat(), "messages": mark("prompt")},
    {**chat(), "messages": [{"role": mark("prompt"), "content": mark("prompt")}]},
    {**chat(), "messages": [{"role": "user", "content": [{"type": mark("prompt"), "text": [{}]}]}]},
    {**chat(), "messages": [{"role": "user", "content": {"deep": [{"er": [mark("prompt")]}]}}]},
    {**chat(), "messages": [{"role": "user", "content": f"{mark('prompt')} \ud800 \x00"}]},
)


@dataclass
class Caller:
    """Sends requests with markers and remembers the statuses they got; 0: none."""

    service: Service
    statuses: list[int] = field(default_factory=list)

    def send(self, method: str, path: str, **request: Any) -> httpx.Response | None:
        headers = HEADERS | {"idempotency-key": f"{mark('idempotency-key')}-{len(self.statuses)}"}
        headers |= request.pop("headers", {})
        with self.service.http() as http:
            try:
                answer = http.request(method, path, headers=headers, timeout=TIMEOUT_S, **request)
            except httpx.TransportError:
                self.statuses.append(0)
                return None
        self.statuses.append(answer.status_code)
        return answer

    def one_of_each(self, words: str = "") -> None:
        """Every request whose body, once accepted, becomes a value in a statement."""
        name = f"{mark('filename')}.jsonl"
        self.send("POST", CHAT, json=chat(words))
        self.send("POST", "/v1/responses", json={"model": "fake", "input": f"{mark('prompt')} {words}"})
        self.send("POST", "/v1/jobs", json=self.online_job(words))
        self.send("POST", "/v1/jobs", json=self.bulk_job("in/unread.jsonl"))
        self.send("POST", "/v1/files", files={"file": (name, rows())}, data={"purpose": "batch"})
        self.send("POST", "/v1/webhook_endpoints", json=self.endpoint())

    def online_job(self, words: str = "") -> dict[str, Any]:
        return {"endpoint": "chat", "body": chat(words), "metadata": metadata(), "webhook": self.webhook()}

    def bulk_job(self, input_path: str, **more: Any) -> dict[str, Any]:
        """Its template is of text that the input's columns fill."""
        name = self.service.location(input_path)
        return {
            "endpoint": "chat",
            "input": name,
            "output": self.service.location(f"out/{input_path}/"),
            "metadata": metadata(),
            "webhook": self.webhook(),
            **more,
        }

    def webhook(self) -> dict[str, Any]:
        return {"url": self.url, "secret": webhook_secret()}

    def endpoint(self) -> dict[str, Any]:
        return {"name": mark("user"), "url": self.url, "event_types": ["*"]}

    @property
    def url(self) -> str:
        """Has secrets in its path and its query."""
        base = self.service.receiver.numeric_url
        return f"{base}/services/{mark('path')}{presigned()}&key={mark('url-query')}"


def metadata() -> dict[str, str]:
    return {mark("metadata"): mark("metadata")}


def rows(*words: str) -> bytes:
    """Lines of a batch's input: good ones, one for each of `words`, and ones of every invalid kind."""
    good = [
        {"custom_id": f"{mark('custom-id')}-{number}", "method": "POST", "url": CHAT, "body": chat(word)}
        for number, word in enumerate(("", *words))
    ]
    wrong: list[Any] = [
        {**good[0], "custom_id": [mark("custom-id")]},
        {**good[0], "custom_id": f"{mark('custom-id')}-wrong", "body": chat(temperature=mark("row"))},
        {**good[0], "custom_id": f"{mark('custom-id')}-role", "body": {"messages": [{"role": mark("row")}]}},
        {**good[0], "url": mark("row")},
        [mark("row")],
    ]
    lines = [json.dumps(line) for line in (*good, *wrong)]
    return "\n".join([*lines, f'{{"broken": "{mark("unparsed")}', mark("unparsed")]).encode()


def csv() -> bytes:
    """A quoted line that ends nowhere, and a line with too many fields."""
    row = mark("row")
    return f'text,{mark("column")}\n{row},{row}\n{row},{row},{row}\n"{row},{row}\n'.encode()


def parquet() -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": [mark("row")] * 3, mark("column"): [mark("row")] * 3}), buffer)
    return buffer.getvalue()


def template(**more: Any) -> dict[str, Any]:
    content = f"{mark('template')} {{{{text}}}}"
    return {"model": "fake", "messages": [{"role": "user", "content": content}], "max_tokens": 4, **more}


@contextmanager
def refusing_rows(service: Service, *tables: str) -> Iterator[None]:
    """PostgreSQL refuses every row of these tables: a constraint fails, which no code of ours expects, and
    whose message has the whole row in it.
    """
    _administer(
        service, [f"ALTER TABLE {table} ADD CONSTRAINT no CHECK (false) NOT VALID" for table in tables]
    )
    try:
        yield
    finally:
        _administer(service, [f"ALTER TABLE {table} DROP CONSTRAINT no" for table in tables])


@contextmanager
def failing_serialization(service: Service, table: str) -> Iterator[None]:
    """Every insert into the table conflicts with another transaction, and the message has the row in it."""
    _administer(
        service,
        [
            "CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE EXCEPTION 'could not serialize' USING ERRCODE = '40001', DETAIL = NEW::text; END $$",
            f"CREATE TRIGGER conflict BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION conflict()",
        ],
    )
    try:
        yield
    finally:
        _administer(service, [f"DROP TRIGGER conflict ON {table}", "DROP FUNCTION conflict"])


def _administer(service: Service, statements: Sequence[str]) -> None:
    assert service.postgresql is not None, "the service was made with one"
    with psycopg.connect(service.postgresql.url().replace("+psycopg", ""), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())
