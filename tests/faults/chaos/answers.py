"""The answer that every request is to get: that of an engine that nothing happens to.

The oracle compares with it byte for byte. What an answer depends on is the request and its identity alone, so
it does not matter which attempt it comes from, nor what else was in the engine.
"""

import queue
from collections.abc import Sequence
from functools import cache
from typing import Protocol

import httpx

from nightshift.cli.demo import demo_model_path
from nightshift.endpoints.results import Identity, Result
from nightshift.endpoints.texts.chat import Chat, ChatRequest
from nightshift.endpoints.texts.generation import Choice
from nightshift.endpoints.texts.streams import AnswerHead
from nightshift.jobs import Usage
from nightshift.jobs.priorities import PriorityClass
from nightshift.process.settings import WorkerSettings
from nightshift_engine import Output
from tests.faults.kit.fake_engine import FakeTokenizer, answer_tokens
from tests.helpers.upstreams.texts import answer, encode, rendered
from tests.helpers.waiting import WAIT_MAX_S
from workers.serving.inference import Progress, TextAnswer
from workers.serving.model_server import Inference

Asked = tuple[ChatRequest, Identity, PriorityClass]


class KnownAnswers(Protocol):
    """An undisturbed run of the engine that a service has."""

    def results(self, requests: Sequence[Asked]) -> list[Result]:
        """An answer to each, in order."""
        ...


class FakeAnswers:
    """The fake engine's, computed: its tokens are a hash."""

    def results(self, requests: Sequence[Asked]) -> list[Result]:
        return [self._answer(*request) for request in requests]

    def _answer(self, request: ChatRequest, identity: Identity, priority: PriorityClass) -> Result:
        tokenizer = FakeTokenizer()
        prompt = tokenizer.render_chat(request.prompts_given[0].messages)
        tokens = answer_tokens(prompt, identity.seed, request.output_tokens_max)
        whole = Output(
            id="",
            text=tokenizer.decode(tokens),
            token_ids=tokens,
            finish_reason="length",
            num_prompt_tokens=len(prompt),
            num_output_tokens=len(tokens),
            num_cached_tokens=0,
        )
        result = TextAnswer(Chat(), request, identity, tokenizer, priority).take(0, whole).result
        assert result is not None
        return result


class ModelAnswers:
    """The demo model's, from an engine of our own here, in deterministic mode."""

    def __init__(self) -> None:
        from workers.serving.loading import load_models  # torch: only who asks for a model pays for it

        self._heard: queue.SimpleQueue[tuple[int, Result] | BaseException] = queue.SimpleQueue()
        settings = WorkerSettings(models=(str(demo_model_path()),), deterministic=True)
        (self._server,) = load_models(settings, self._heard.put)
        self._server.start()

    def results(self, requests: Sequence[Asked]) -> list[Result]:
        for number, request in enumerate(requests):
            self._submit(number, *request)
        answers: dict[int, Result] = {}
        while len(answers) < len(requests):
            heard = self._heard.get(timeout=WAIT_MAX_S)
            if isinstance(heard, BaseException):
                raise heard
            answers[heard[0]] = heard[1]
        return [answers[number] for number in range(len(requests))]

    def _submit(self, number: int, request: ChatRequest, identity: Identity, priority: PriorityClass) -> None:
        def listen(progress: Progress) -> None:
            if progress.failed is not None:
                self._heard.put(AssertionError(f"{identity.name}: {progress.failed}"))
            if progress.result is not None:
                self._heard.put((number, progress.result))

        self._server.submit(Inference(identity.name, Chat(), request, identity, priority, listen))


class UpstreamAnswers:
    """Answers of simulated upstreams, computed: they follow from the prompt."""

    def results(self, requests: Sequence[Asked]) -> list[Result]:
        return [self._answer(*request) for request in requests]

    def _answer(self, request: ChatRequest, identity: Identity, priority: PriorityClass) -> Result:
        prompt = encode(rendered({"messages": request.prompts_given[0].messages}))
        said = answer(prompt, request.output_tokens_max, is_endless=request.ignore_eos)
        return Chat().result(
            request,
            AnswerHead(Chat().answer_id(identity.name), identity.created_s, priority),
            choices=[Choice(said.text, said.finish_reason)],
            usage=Usage(len(prompt), len(said.token_ids)),
        )


class EngineAnswers:
    """Answers of a real upstream, which is asked for one at a time."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=WAIT_MAX_S, trust_env=False)

    def results(self, requests: Sequence[Asked]) -> list[Result]:
        return [self._answer(*request) for request in requests]

    def _answer(self, request: ChatRequest, identity: Identity, priority: PriorityClass) -> Result:
        body = request.model_dump(mode="json", exclude_unset=True)
        answer = self._client.post("/chat/completions", json=body).raise_for_status().json()
        choice, usage = answer["choices"][0], answer["usage"]
        return Chat().result(
            request,
            AnswerHead(Chat().answer_id(identity.name), identity.created_s, priority),
            choices=[Choice(choice["message"]["content"], choice["finish_reason"])],
            usage=Usage(usage["prompt_tokens"], usage["completion_tokens"]),
        )


@cache
def answers_of(engine: str, *urls: str) -> KnownAnswers:
    """`engine` as in `Parts`, `urls` of its upstreams. A model is loaded once for all services."""
    kinds = {"fake": FakeAnswers, "demo": ModelAnswers, "upstream": UpstreamAnswers}
    return EngineAnswers(urls[0]) if engine == "vllm" else kinds[engine]()
