"""POST /v1/chat/completions, whole and streamed."""

from functools import partial
from typing import Any, Final

from conformance.expectations import (
    expect,
    expect_count,
    expect_equal,
    expect_id,
    expect_list,
    expect_refusal,
    shown,
)
from conformance.registry import Area
from conformance.session import PROMPT, Session

AREA = Area("chat", "POST", "/chat/completions")
FINISHES: Final = ("stop", "length", "content_filter", "tool_calls")
CHUNKS_MAX: Final = 1000  # an answer has 16 tokens: more is a stream that does not end


@AREA.add("an answer has every field that the client's type requires")
def answered(session: Session) -> None:
    answer = session.chat()
    expect_id(answer.id, "a chat with the id")
    expect_equal(answer.object, "chat.completion", "a chat with the object")
    expect_count(answer.created, "a chat with created")
    [choice] = expect_list(answer.choices, "a chat with the choices")
    expect_equal(choice.index, 0, "the first choice with the index")
    expect_equal(choice.message.role, "assistant", "a message with the role")
    expect(
        choice.message.content is None or isinstance(choice.message.content, str),
        f"answers the content {shown(choice.message.content)}",
        "answers a text or null",
    )
    _expect_finish(choice.finish_reason)
    _expect_usage(answer.usage)


@AREA.add("content may come as parts")
def content_parts(session: Session) -> None:
    parts = [{"type": "text", "text": PROMPT}]
    answer = session.chat(messages=[{"role": "user", "content": parts}])
    expect_equal(answer.object, "chat.completion", "a chat of parts with the object")


@AREA.add("a stream begins with the role, ends with a finish reason, and has one id")
def streamed(session: Session) -> None:
    chunks = _chunks(session.chat(stream=True))
    expect(bool(chunks), "streams no chunk", "streams at least one")
    ids = {chunk.id for chunk in chunks}
    expect(len(ids) == 1, f"streams one answer with {len(ids)} ids", "gives all its chunks one id")
    for chunk in chunks:
        expect_equal(chunk.object, "chat.completion.chunk", "a chunk with the object")
    expect_equal(chunks[0].choices[0].delta.role, "assistant", "the first delta with the role")
    finishes = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    expect(
        [finish for finish in finishes if finish is not None] == finishes[-1:],
        f"streams the finish reasons {shown(finishes)}",
        "gives one, in the last choice",
    )
    _expect_finish(finishes[-1])


@AREA.add("usage is in one last chunk when it is asked for, and in none otherwise")
def stream_usage(session: Session) -> None:
    *others, last = _chunks(session.chat(stream=True, stream_options={"include_usage": True}))
    expect_equal(last.choices, [], "the chunk with usage with the choices")
    _expect_usage(last.usage)
    expect(
        all(chunk.usage is None for chunk in others),
        "streams usage in several chunks",
        "sends it in the last",
    )
    plain = _chunks(session.chat(stream=True))
    expect(
        all(chunk.usage is None for chunk in plain),
        "streams usage that was not asked for",
        "sends it only with stream_options.include_usage",
    )


@AREA.add("a stream is server-sent events that end with [DONE]")
def stream_form(session: Session) -> None:
    create = session.client.chat.completions.with_streaming_response.create
    with create(**session.chat_body(), stream=True) as answer:
        content_type = answer.headers.get("content-type", "")
        expect(
            content_type.startswith("text/event-stream"),
            f"streams as {shown(content_type)}",
            "streams as text/event-stream",
        )
        lines = [line for line, _ in zip(answer.iter_lines(), range(2 * CHUNKS_MAX), strict=False) if line]
    expect(
        lines[-1:] == ["data: [DONE]"],
        f"ends a stream with {shown(lines[-1:])}",
        'ends it with "data: [DONE]"',
    )


@AREA.add("a request without messages names the field")
def messages_missing(session: Session) -> None:
    expect_refusal(
        lambda: session.client.post("/chat/completions", cast_to=object, body={"model": session.chat_model}),
        "a chat without messages",
        param="messages",
    )


@AREA.add("a temperature that is a text, or 99, names the field")
def temperature_wrong(session: Session) -> None:
    for wrong in ("hot", 99):
        expect_refusal(
            partial(session.chat, temperature=wrong), f"temperature={wrong!r}", param="temperature"
        )


@AREA.add("stream_options without stream are refused")
def stream_options_alone(session: Session) -> None:
    expect_refusal(
        lambda: session.chat(stream_options={"include_usage": True}), "stream_options without stream"
    )


@AREA.add("tool_choice without tools is refused")
def tool_choice_alone(session: Session) -> None:
    expect_refusal(lambda: session.chat(tool_choice="required"), "tool_choice without tools")


def _chunks(stream: Any) -> list[Any]:
    chunks = [chunk for chunk, _ in zip(stream, range(CHUNKS_MAX + 1), strict=False)]
    stream.close()
    expect(len(chunks) <= CHUNKS_MAX, f"streams {CHUNKS_MAX} chunks and more", "ends a stream")
    return chunks


def _expect_finish(reason: object) -> None:
    expect(reason in FINISHES, f"answers the finish reason {shown(reason)}", f"has {', '.join(FINISHES)}")


def _expect_usage(usage: Any) -> None:
    prompt = expect_count(getattr(usage, "prompt_tokens", None), "usage.prompt_tokens")
    completion = expect_count(getattr(usage, "completion_tokens", None), "usage.completion_tokens")
    total = expect_count(getattr(usage, "total_tokens", None), "usage.total_tokens")
    expect(
        total == prompt + completion,
        f"answers {total} tokens in all for {prompt} and {completion}",
        "answers their sum",
    )
