"""Requests that would cost too much: each was found to, or is of a kind that was."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nightshift.process.starting import INTEGER_DIGITS_MAX

BODY_BYTES: Final = 4 * 2**20 - 400  # the limit, less what is around the many
JOBS: Final = "/v1/jobs"
FILES: Final = "/v1/files"
FORM: Final = {"content-type": "multipart/form-data; boundary=B"}


@dataclass(frozen=True)
class Costly:
    name: str
    path: str
    make: Callable[[], bytes] = bytes  # its body; making all of them takes seconds
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 400


def full(unit: bytes, less: int = 0) -> bytes:
    """As many of these, with commas between, as a body may have."""
    return b",".join([unit] * ((BODY_BYTES - less) // (len(unit) + 1)))


def as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def chat(content: bytes, more: bytes = b"") -> bytes:
    """A job of one chat request."""
    message = b'{"role":"user","content":%s}' % content
    return b'{"endpoint":"chat","body":{"model":"m","messages":[%s]%s}}' % (message, more)


def beside(value: bytes) -> bytes:
    """A chat request with a field that is ignored."""
    return chat(b'"a"', b',"x":' + value)


def with_field(**fields: Any) -> bytes:
    return chat(b'"a"', b"," + as_json(fields)[1:-1])


def called_with(arguments: str) -> bytes:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    return as_json({"endpoint": "chat", "body": {"model": "m", "messages": messages}})


def schema(content: Any) -> bytes:
    named = {"name": "a", "schema": content}
    return with_field(response_format={"type": "json_schema", "json_schema": named})


def bulk(**fields: Any) -> bytes:
    return as_json({"endpoint": "chat", "input": "file:///a", "output": "file:///b"} | fields)


def endpoint(**fields: Any) -> bytes:
    return as_json({"name": "a", "url": "https://a.example/", "event_types": ["*"]} | fields)


def form(*parts: bytes) -> bytes:
    return b"".join(b"--B\r\n" + part + b"\r\n" for part in parts) + b"--B--\r\n"


def form_field(name: bytes, value: bytes = b"") -> bytes:
    return b'content-disposition: form-data; name="' + name + b'"\r\n\r\n' + value


A_FILE: Final = b'content-disposition: form-data; name="file"; filename="a"\r\n\r\n'
CYCLE: Final = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}

CORPUS: Final = (
    Costly("parts that are numbers", JOBS, lambda: chat(b"[" + full(b"1") + b"]")),
    Costly("parts that are empty", JOBS, lambda: chat(b"[" + full(b"{}") + b"]")),
    Costly("lists in lists", JOBS, lambda: beside(b"[" + full(b"[" * 16 + b"]" * 16) + b"]")),
    Costly("objects in objects", JOBS, lambda: beside(b"[" + full(b'{"":{"":{"":{}}}}') + b"]")),
    Costly("empty lists", JOBS, lambda: beside(b"[" + full(b"[]") + b"]")),
    Costly("lists without an end", JOBS, lambda: b"[" * BODY_BYTES),
    Costly(
        "many fields", JOBS, lambda: beside(b"{" + b",".join(b'"%x":0' % n for n in range(380_000)) + b"}")
    ),
    Costly("one field many times", JOBS, lambda: beside(b"{" + full(b'"a":1') + b"}")),
    Costly("a NUL at the end", JOBS, lambda: beside(b"[" + full(b'"a"', less=20) + b',{"\\u0000":1}]')),
    Costly("half of a pair at the end", JOBS, lambda: beside(b"[" + full(b'"a"', less=20) + b',"\\ud800"]')),
    Costly("numbers", JOBS, lambda: beside(b"[" + full(b"1e1") + b"]"), status=202),
    Costly("long numbers", JOBS, lambda: beside(b"[" + full(b"9" * INTEGER_DIGITS_MAX) + b"]"), status=202),
    Costly("numbers that are too long", JOBS, lambda: beside(b"[" + full(b"9" * 4299) + b"]")),
    Costly("a longer number", JOBS, lambda: beside(b"9" * BODY_BYTES)),
    Costly("a long fraction", JOBS, lambda: beside(b"0." + b"1" * BODY_BYTES), status=202),
    Costly("escapes", JOBS, lambda: chat(b'"' + b"\\u00e9" * (BODY_BYTES // 6) + b'"'), status=202),
    Costly(
        "escaped pairs", JOBS, lambda: chat(b'"' + b"\\ud83d\\ude00" * (BODY_BYTES // 12) + b'"'), status=202
    ),
    Costly("text of brackets", JOBS, lambda: chat(b'"' + b"[{:" * (BODY_BYTES // 3) + b'"'), status=202),
    Costly("escaped quotes", JOBS, lambda: chat(b'"' + b'\\"[' * (BODY_BYTES // 3) + b'"'), status=202),
    Costly("arguments of lists", JOBS, lambda: called_with("[" + "[[[[]]]]," * 400_000 + "1]")),
    Costly("arguments without an end", JOBS, lambda: called_with("[" * 4_000_000)),
    Costly(
        "tools", JOBS, lambda: with_field(tools=[{"type": "function", "function": {"name": "f"}}] * 20_000)
    ),
    Costly("choices", JOBS, lambda: with_field(guided_choice=["a"] * 1_000_000)),
    Costly("a long grammar", JOBS, lambda: with_field(guided_grammar="a" * 4_000_000)),
    Costly("an enum", JOBS, lambda: schema({"enum": list(range(500_000))})),
    Costly("schemas in a circle", JOBS, lambda: schema({"$ref": "#/$defs/a", "$defs": CYCLE}), status=202),
    Costly("a template of blanks", JOBS, lambda: bulk(template={"messages": "{{" + " " * 4_000_000})),
    Costly("a template of openings", JOBS, lambda: bulk(template={"messages": "{{" * 32_000})),
    Costly("a glob", JOBS, lambda: bulk(input="file:///" + "*a" * 1000)),
    Costly("a long location", JOBS, lambda: bulk(input="file:///" + "a" * 4_000_000)),
    Costly("columns", JOBS, lambda: bulk(columns={f"a{n}": "b" for n in range(200_000)})),
    Costly("event types", "/v1/webhook_endpoints", lambda: endpoint(event_types=[1] * 1_800_000)),
    Costly(
        "a long URL", "/v1/webhook_endpoints", lambda: endpoint(url="https://a.example/" + "a" * 4_000_000)
    ),
    Costly("parts", "/v1/uploads/upload_1/complete", lambda: as_json({"part_ids": [1] * 1_800_000})),
    Costly(
        "a range",
        f"{FILES}/file-1/content",
        method="GET",
        headers={"range": "bytes=" + " " * 60_000 + "x"},
        status=431,
    ),
    Costly("parameters", f"{JOBS}?" + "limit=1&" * 7000, method="GET", status=431),
    Costly("a large parameter", f"{JOBS}?limit=" + "9" * 60_000, method="GET", status=431),
    Costly(
        "form fields", FILES, lambda: form(*[form_field(b"a%d" % n) for n in range(60_000)]), headers=FORM
    ),
    Costly("a form's headers", FILES, lambda: form(b"x: y\r\n" * 1_000_000 + form_field(b"a")), headers=FORM),
    Costly("beginnings of boundaries", FILES, lambda: form(A_FILE + b"\r\n--A" * 1_600_000), headers=FORM),
    Costly("before the first boundary", FILES, lambda: b"\r\n" * 4_000_000 + form(), headers=FORM),
)
