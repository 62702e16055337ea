"""The same routes through the official Node client: what node.mjs checks."""

from typing import Final

from conformance.node import run_check
from conformance.registry import Area, Check
from conformance.session import Session

AREA = Area("node", "GET", "/models")
EMBEDDINGS: Final = ("POST", "/embeddings")
CHAT: Final = ("POST", "/chat/completions")
RESPONSES: Final = ("POST", "/responses")

# By the name in node.mjs: the route it needs, and what it finds true.
STATEMENTS: Final[dict[str, tuple[tuple[str, str], str]]] = {
    "models": (("GET", "/models"), "models are listed and found, and an unknown one is a NotFoundError"),
    "files": (("GET", "/files"), "a file is uploaded, read and deleted"),
    "file-pages": (("GET", "/files"), "for await goes over several pages and sees every file once"),
    "batch-created": (("GET", "/batches"), "a batch is created and found by its id"),
    "batch-completed": (("GET", "/batches"), "a batch of a good row is completed, and its output is read"),
    "chat": (CHAT, "a chat is answered, with usage"),
    "chat-streamed": (CHAT, "the client's stream puts a chat together"),
    "chat-refused": (CHAT, "refusals are its own errors, with param and code"),
    "schema": (CHAT, "a strict JSON schema is kept"),
    "tool-streamed": (CHAT, "the client's stream puts a call of a function together"),
    "completions": (("POST", "/completions"), "several prompts are completed, in their order"),
    "response": (RESPONSES, "a response has the client's output_text, and usage"),
    "response-streamed": (RESPONSES, "the client's stream puts a response together"),
    "embeddings": (EMBEDDINGS, "the client's default encoding (base64) becomes the same floats"),
    "upload": (("POST", "/uploads"), "parts become one file"),
    "webhook": (("GET", "/webhook_endpoints"), "a test event is signed, and webhooks.unwrap takes it"),
    "key-refused": (("GET", "/models"), "a wrong key is an AuthenticationError with its code"),
    "request-id": (("GET", "/models"), "answers and errors have a request id"),
}
SLOW: Final = {"batch-completed"}


def _check(name: str, route: tuple[str, str], statement: str) -> Check:
    def run(session: Session) -> None:
        session.require(*route)
        run_check(session, name, needs_embeddings=route == EMBEDDINGS)

    return Check(name, statement, run, name in SLOW)


AREA.checks += [_check(name, route, statement) for name, (route, statement) in STATEMENTS.items()]
