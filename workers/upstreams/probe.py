"""Asks an upstream what it is, which models it has, and what each of them answers.

Facts are where each engine puts them: vLLM and SGLang `max_model_len` in `/v1/models`, llama.cpp `meta`
there and `n_ctx` in `/props`, TGI `max_total_tokens` in `/info`; the version is at `/version`, `/info` or
`/get_server_info`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nightshift.errors import ConfigurationError, shortened
from nightshift.fleet.models import ModelKind
from nightshift.jobs import JsonObject
from nightshift.process.upstreams import SETTING, Upstream, UpstreamModel
from workers.upstreams.connection import Connection
from workers.upstreams.faults import (
    KeyRefused,
    ModelGone,
    RowFailed,
    RowRefused,
    Unavailable,
    UpstreamChanged,
    UpstreamFault,
)
from workers.upstreams.messages.answers import usage_of
from workers.upstreams.messages.continuing import begun
from workers.upstreams.served import CHATS, CLASSIFY, LIMITS, Engine, ServedModel

FACT_S: Final = 60.0  # for what is told, not computed
MODELS_MAX: Final = 64  # that are not named; each is asked ten questions
CHARS_MAX: Final = 255  # of an id, and of what an engine says of itself
OURSELVES: Final = "nightshift"
SGLANG_LOW_FIRST: Final = "schedule_low_priority_values_first"
FACTS: Final = ("/version", "/info", "/get_server_info", "/props")
CONTEXT_FIELDS: Final = (
    *("max_model_len", "context_length", "context_window", "max_context_length"),
    *("max_total_tokens", "n_ctx"),
)
LOOP: Final = "it is a Nightshift itself: work would go in a circle"

_HI: Final = "Hi"
QUESTIONS: Final[Mapping[str, JsonObject]] = {
    CHATS: {"messages": [{"role": "user", "content": _HI}], LIMITS[0]: 1},
    "/v1/completions": {"prompt": _HI, "max_tokens": 1},
    "/v1/embeddings": {"input": _HI},
    "/v1/rerank": {"query": _HI, "documents": [_HI]},
    "/v1/score": {"text_1": _HI, "text_2": _HI},
    CLASSIFY: {"input": _HI},
    "/v1/moderations": {"input": _HI},
}
"""The least request of each route that an upstream may have."""
HOLD_ANSWERS: Final = ("choices", "data", "results")
TEXT_ROUTES: Final = (CHATS, "/v1/completions")
KINDS: Final = {
    ModelKind.DECODER: {*TEXT_ROUTES},
    ModelKind.ENCODER: {"/v1/embeddings"},
    ModelKind.CLASSIFIER: {"/v1/rerank", "/v1/score", CLASSIFY, "/v1/moderations"},
}
NO_ROUTE: Final = re.compile("answers (4|500|501)")  # of the failure at a route, where others may be well


class Probe:
    """Asks an upstream. A question that was answered is not asked again: hosted APIs charge for it."""

    def __init__(self, upstream: Upstream, connection: Connection) -> None:
        self._upstream = upstream
        self._connection = connection
        self._answers: dict[str, JsonObject | None] = {}
        self._facts: dict[str, JsonObject] = {}
        self._key_refused: KeyRefused | None = None

    async def models(self) -> Sequence[ServedModel]:
        """The models to serve. Raises ConfigurationError, or an UpstreamFault where asking again may help."""
        named, entries = self._upstream.models, await self._entries()
        if not named and len(entries) > MODELS_MAX:
            raise self._wrong(f"it has {len(entries)} models: name those to serve in a YAML file")
        if lacking := sorted(named.keys() - entries.keys()):
            raise self._wrong(f"it has no model {lacking[0]!r}; it has {shortened(', '.join(entries), 200)}")
        self._facts = {path: await self._told(path) for path in FACTS}
        served = {id: await self._model(entries[id]) for id in named or entries}
        models = [model for model in served.values() if model is not None]
        if len(models) < (len(named) or 1):
            self._answers.clear()  # it may not be well yet
            mute = next(id for id, model in served.items() if model is None)
            raise self._key_refused or Unavailable(f"has {mute!r}, which answers none of our routes")
        return models

    async def check_same(self, model: ServedModel) -> None:
        """Raises UpstreamChanged where another engine, version or checkpoint is told than of the model;
        ModelGone, and as `models`.
        """
        if (entry := (await self._entries()).get(model.id_there)) is None:
            raise ModelGone("no longer has the model")
        self._facts = {path: await self._told(path) for path in FACTS}
        now, before = self._engine(entry), model.engine
        is_same = now.name == before.name and now.version in (None, before.version)
        if not is_same or _text(entry.get("root")) != model.root:
            raise UpstreamChanged(
                f"The upstream {self._upstream.name!r} has another engine, version or checkpoint of "
                f"{model.id!r} than at the worker's start, which ends to register it at the next"
            )

    async def takes(self, route: str, model: str, more: JsonObject | None = None) -> JsonObject | None:
        """The answer to the route's least request with `more` fields, and without those that are None. None:
        it refuses. Raises UpstreamFault.
        """
        fields = QUESTIONS[route] | {"model": model} | (more or {})
        question = {name: value for name, value in fields.items() if value is not None}
        key = f"{route} {json.dumps(question)}"
        if key not in self._answers:
            self._answers[key] = await self._answer(route, question)
        return self._answers[key]

    async def streamed(self, route: str, model: str, begins: str = "") -> Sequence[JsonObject]:
        """The chunks of an answer, of a chat's that begins so; none where it fails. Raises Overloaded."""
        body = QUESTIONS[route] | {"model": model, "stream": True, "stream_options": {"include_usage": True}}
        try:
            stream = self._connection.stream(route, begun(body, begins) if begins else body)
            return [chunk async for chunk in stream]
        except (RowRefused, RowFailed, ModelGone, KeyRefused, Unavailable):
            return ()

    async def _answer(self, route: str, question: JsonObject) -> JsonObject | None:
        try:
            body = json.loads((await self._connection.post(route, question)).data)
        except KeyRefused as refused:  # perhaps of this route or this model alone
            self._key_refused = refused
            return None
        except (RowRefused, RowFailed, ModelGone, ValueError, RecursionError):
            return None
        except Unavailable as error:
            if NO_ROUTE.match(error.reason):
                return None
            raise
        # LM Studio answers 200 on routes that it has not.
        is_answer = isinstance(body, dict) and any(isinstance(body.get(name), list) for name in HOLD_ANSWERS)
        return body if is_answer else None

    async def _entries(self) -> Mapping[str, JsonObject]:
        """The upstream's words on each of its models, by id."""
        if (await self._told("/healthz")).get("service") == OURSELVES:
            raise self._wrong(LOOP)
        try:
            data = (await self._connection.get("/models", timeout_s=FACT_S)).get("data")
        except (ModelGone, RowRefused, RowFailed) as error:
            raise Unavailable("has no /models: its URL should end before that, mostly with /v1") from error
        listed = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
        entries = {entry["id"]: entry for entry in listed if isinstance(entry.get("id"), str)}
        if any(entry.get("owned_by") == OURSELVES for entry in listed):
            raise self._wrong(LOOP)
        if not entries:
            raise Unavailable("has no models")
        return entries

    async def _model(self, entry: JsonObject) -> ServedModel | None:
        """The model, or None: it answers none of our routes."""
        id_there = entry["id"]
        said = self._upstream.models.get(id_there, UpstreamModel())
        routes = {route for route in QUESTIONS if await self.takes(route, id_there) is not None}
        limit_field = LIMITS[0]
        if CHATS not in routes and await self.takes(CHATS, id_there, {LIMITS[0]: None, LIMITS[1]: 16}):
            routes, limit_field = routes | {CHATS}, LIMITS[1]
        if not routes:
            return None
        kinds = [kind for kind, of_kind in KINDS.items() if routes & of_kind]
        if said.kind not in (None, *kinds):
            raise self._wrong(f"{id_there!r} is no {said.kind}, but {' and '.join(kinds)}")
        if (id := _text(said.id or id_there)) is None:
            raise self._wrong(f"{id_there[:CHARS_MAX]!r} is no id that a model has here: give it another")
        if (length := said.context_length or self._context(entry)) is None:
            raise self._wrong(
                f"it does not say the context length of {id_there!r}: set context_length below "
                f"models.{id_there} in a YAML file that NIGHTSHIFT_{SETTING} names"
            )
        engine = self._engine(entry)
        return ServedModel(
            id,
            id_there,
            said.kind or kinds[0],
            frozenset(routes),
            length,
            _text(entry.get("root")),
            engine,
            limit_field,
            await self._ranks(engine, routes, id_there),
            CHATS in routes and await self._continues(id_there),
        )

    def _engine(self, entry: JsonObject) -> Engine:
        versions = [version for told in self._facts.values() if (version := _text(told.get("version")))]
        return Engine(_text(entry.get("owned_by")) or "unknown", next(iter(versions), None))

    def _context(self, entry: JsonObject) -> int | None:
        """The context length that it is served with; else, of llama.cpp, the one that it was trained for."""
        meta, props = entry.get("meta"), self._facts["/props"]
        places = [entry, meta, props.get("default_generation_settings"), props, self._facts["/info"]]
        lengths = [told.get(name) for told in places if isinstance(told, dict) for name in CONTEXT_FIELDS]
        lengths.append(meta.get("n_ctx_train") if isinstance(meta, dict) else None)
        return next((length for length in lengths if type(length) is int and length > 0), None)

    async def _ranks(self, engine: Engine, routes: set[str], model: str) -> bool:
        """Whether it runs requests with a lower `priority` sooner, or takes no notice. SGLang's default is
        the reverse; vLLM may refuse any but 0 where it does not schedule by them.
        """
        if engine.name == "sglang":
            told = self._facts["/get_server_info"]
            return bool(told.get("enable_priority_scheduling") and told.get(SGLANG_LOW_FIRST))
        ranked = [route for route in TEXT_ROUTES if route in routes]
        if engine.name != "vllm" or not ranked:
            return False
        return await self.takes(ranked[0], model, {"priority": 1}) is not None

    async def _continues(self, model: str) -> bool:
        """Whether the beginning of an answer makes a chat's prompt longer by its own tokens alone: some
        templates end it, or put a thought before it.
        """
        streams = [await self.streamed(CHATS, model, begins) for begins in ("", _HI)]
        counts = [max((usage_of(chunk).prompt_tokens for chunk in stream), default=0) for stream in streams]
        return counts[0] > 0 and 0 < counts[1] - counts[0] <= len(_HI)

    async def _told(self, path: str) -> JsonObject:
        """Facts that an engine tells of itself beside `/v1`; nothing where it has no such route."""
        try:
            return await self._connection.get(path, at_root=True, timeout_s=FACT_S)
        except (RowRefused, RowFailed, UpstreamFault):
            return {}

    def _wrong(self, says: str) -> ConfigurationError:
        return ConfigurationError(
            f"The upstream {self._upstream.name!r} cannot be used: {says}.", param=SETTING
        )


def _text(value: Any) -> str | None:
    """A text that may be stored and shown."""
    is_text = isinstance(value, str) and 0 < len(value) <= CHARS_MAX and value.isprintable()
    return value if is_text else None
