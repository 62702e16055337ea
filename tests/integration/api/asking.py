"""Bodies of job requests that would be accepted."""

from pathlib import Path

from tests.integration.api.fake_worker import CHAT_MODEL

CHAT = "/v1/chat/completions"


def online(text: str = "one two", **fields: object) -> dict[str, object]:
    body = {"model": CHAT_MODEL, "messages": [{"role": "user", "content": text}]}
    return {"endpoint": CHAT, "body": body} | fields


def bulk_under(allowed: Path) -> dict[str, object]:
    return {
        "endpoint": CHAT,
        "input": (allowed / "in.jsonl").as_uri(),
        "output": (allowed / "out").as_uri() + "/",
    }
