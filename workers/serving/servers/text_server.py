"""A decoder: serves the requests of every endpoint for text."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from nightshift.endpoints import Endpoint
from nightshift.endpoints.requests import ModelRequest
from nightshift.endpoints.structured.tools import Tools
from nightshift.endpoints.texts.generation import (
    Conversation,
    GenerationRequest,
    Prompt,
    TextEndpoint,
    prompt_chars,
)
from nightshift.endpoints.tokenizers.endpoint import TokenizerEndpoint, TokenizerRequest
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import Model
from nightshift.jobs import JsonObject
from nightshift.jobs.priorities import PriorityClass
from nightshift.tenants.cache_groups import NO_GROUPS, CacheGroups
from nightshift_engine import EngineHistograms, EngineStats, Grammar, MadeBy, Output, SamplingParams
from nightshift_engine import InvalidRequest as EngineRefusal
from nightshift_engine import Request as EngineRequest
from workers.serving.carry_over import CarryOver, ChoiceSoFar
from workers.serving.inference import (
    Listener,
    Progress,
    SamplingDefaults,
    TextAnswer,
    check_length,
    check_output_length,
    choice_seed,
    sampling_params,
)
from workers.serving.model_server import Inference, OnFatal, Tokens, engine_class, invalid
from workers.serving.servers.conversations import conversation_text, thought_budget
from workers.serving.servers.model_tokens import show_tokens
from workers.serving.servers.tokenizing import Part, tokenize
from workers.serving.servers.tool_calls import check_template
from workers.serving.stepping_server import SteppingServer

if TYPE_CHECKING:  # needs torch
    from nightshift_engine import Engine
    from workers.serving.engine_process.engine_process import EngineProcess

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Text:
    """A text to be tokenised."""

    text: str
    is_conversation: bool = False  # its special tokens are in it already


@dataclass
class _Running:
    """A request in the engine, as one sequence per choice, then one per prompt whose tokens are scored."""

    answer: TextAnswer
    listener: Listener
    sequence_ids: Sequence[str]
    is_streamed: bool = True
    told: list[int] = field(default_factory=list)
    """Tokens that have been told of each choice that is not streamed."""
    resumed: list[int] = field(default_factory=list)
    """The number of tokens that each began with. The engine may be reading them again, and has fewer
    meanwhile.
    """


class _Refused(Exception):
    """The engine cannot run a choice of one of the prompts."""

    def __init__(self, prompt: int, error: EngineRefusal) -> None:
        self.prompt = prompt
        self.error = error


class TextServer(SteppingServer):
    """Runs text requests on the engine, one sequence per choice."""

    def __init__(
        self,
        model: Model,
        engine: "Engine | EngineProcess",
        on_fatal: OnFatal,
        defaults: SamplingDefaults,
        cache_groups: CacheGroups = NO_GROUPS,
    ) -> None:
        super().__init__(replace(model, dtype=engine.made_by.dtype), on_fatal)
        self._engine = engine
        self._defaults = defaults
        self._cache_groups = cache_groups
        digests = engine.limits.adapters
        self.adapters = {
            name: replace(model, id=name, revision=f"{model.revision}+{digest}", parent=model.id)
            for name, digest in digests.items()
        }
        self._running: dict[str, _Running] = {}  # by inference id
        self._choices: dict[str, tuple[str, int]] = {}  # inference id and choice, by sequence id
        self._interactive: set[str] = set()  # those of that class, by inference id
        self._telling = threading.Lock()  # no token is told twice

    @property
    def made_by(self) -> JsonObject:
        return asdict(self._engine.made_by)

    def made_by_of(self, model_id: str) -> JsonObject:
        digest = self._engine.limits.adapters.get(model_id)
        made_by = self._engine.made_by
        return asdict(made_by if digest is None else made_by.with_adapter(model_id, digest))

    def submit(self, inference: Inference) -> None:
        request = inference.request
        endpoint = inference.endpoint
        if isinstance(endpoint, TokenizerEndpoint):
            show_tokens(inference, self._engine.tokenizer, self.model)
            return
        assert isinstance(endpoint, TextEndpoint), "the model's kind was checked"
        assert isinstance(request, GenerationRequest), "its requests are for text"
        num_choices = request.num_choices
        ids = _sequence_ids(inference.id, num_choices, request)
        self._running[inference.id] = _Running(
            TextAnswer(endpoint, request, inference.identity, self._engine.tokenizer, inference.priority),
            inference.listener,
            ids,
            inference.is_streamed,
            told=[0] * num_choices,
            resumed=[0] * num_choices,
        )
        self._choices |= {id: (inference.id, number) for number, id in enumerate(ids)}
        if inference.priority is PriorityClass.INTERACTIVE:
            self._interactive.add(inference.id)
        try:
            self._add(inference, endpoint, request, ids)
        except _Refused as refused:
            self._forget(inference.id)
            raise invalid(refused.error, endpoint.prompt_place(request, refused.prompt)) from refused.error
        except Exception:
            self._forget(inference.id)
            raise
        if inference.id not in self._running:  # cancelled before it was added
            self._abort(ids)
        self._wake()

    def cancel(self, inference_id: str) -> None:
        running = self._forget(inference_id)
        if running is not None:
            self._abort(running.sequence_ids)
            self._wake()

    @property
    def _has_work(self) -> bool:
        return self._engine.has_work

    @property
    def _is_urgent(self) -> bool:
        return bool(self._interactive)

    def _step(self) -> None:
        for output in self._engine.step():
            inference_id, choice = self._choices.get(output.id, ("", 0))
            running = self._running.get(inference_id)
            if running is None:
                continue  # cancelled meanwhile
            for progress in _progress(running, choice, output):
                self._tell(inference_id, running, output, progress)

    def _tell(self, inference_id: str, running: _Running, output: Output, progress: Progress) -> None:
        if not running.is_streamed:
            self._leave_out_told(running, progress.choice, progress)
        if progress.result is not None or progress.failed is not None:
            self._forget(inference_id)
        if progress.failed is not None or output.is_refused:
            self._abort(running.sequence_ids)  # one failed choice fails the request
        running.listener(progress)

    def generated(self, inference_id: str) -> list[Progress]:
        running = self._running.get(inference_id)
        if running is None or running.is_streamed:
            return []
        news = []
        with self._telling:
            for choice, (id, told) in enumerate(zip(running.sequence_ids, running.told, strict=False)):
                token_ids, logprobs = self._engine.generated(id, told)
                if token_ids and told + len(token_ids) >= running.resumed[choice]:
                    running.told[choice] += len(token_ids)
                    news.append(Progress("", token_ids, choice, logprobs))
        return news

    def _leave_out_told(self, running: _Running, choice: int, progress: Progress) -> None:
        """Leaves out of an output, which has all tokens, those that have been told."""
        with self._telling:
            told = running.told[choice]
            progress.token_ids, progress.token_logprobs = (
                progress.token_ids[told:],
                progress.token_logprobs[told:],
            )
            running.told[choice] += len(progress.token_ids)

    @property
    def histograms(self) -> EngineHistograms:
        return self._engine.histograms

    def _close(self) -> None:
        self._engine.close()

    def _read_stats(self) -> EngineStats:
        return self._engine.stats()

    def _readings(
        self,
        inference: Inference,
        prompts: Sequence[tuple[int, ...]],
        ids: Sequence[str],
        num_top: int | None,
    ) -> list[EngineRequest]:
        """One engine request per prompt that is read by itself, and scored unless `num_top` is None. Its
        choices find its KV, and may be resumed without it. It generates a token, which is not shown.
        """
        if not ids:
            return []
        return [
            EngineRequest(
                id=id,
                prompt_token_ids=prompt,
                sampling=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True),
                priority=engine_class(inference.priority),
                group=inference.group,
                flow=inference.tenant_id,
                cache_salt=self._cache_groups.salt_of(inference.tenant_id),
                adapter=self._adapter(inference.request),
                output_kind="final_only",
                prompt_logprobs=num_top,
            )
            for id, prompt in zip(ids, prompts, strict=True)
        ]

    def _adapter(self, request: ModelRequest) -> str | None:
        return request.model if request.model in self.adapters else None

    def _sequences(
        self,
        inference: Inference,
        request: GenerationRequest,
        prompts: Sequence[tuple[int, ...]],
        ids: Sequence[str],
    ) -> list[EngineRequest]:
        """One engine request per choice: those of a prompt share its KV, and each has its own seed."""
        if request.is_read_only:
            return []
        per_prompt = len(ids) // len(prompts)
        seeds_repeat = request.seed is not None
        sampling = replace(
            sampling_params(request, inference.identity.seed, self._defaults),
            thinking_token_budget=thought_budget(self._engine.tokenizer, request.thinking),
        )
        assert sampling.seed is not None, "every request has one, given or its own"
        guidance = request.guidance
        grammar = Grammar(guidance.kind, guidance.text) if guidance is not None else None
        return [
            EngineRequest(
                id=id,
                prompt_token_ids=prompts[choice // per_prompt],
                sampling=replace(
                    sampling,
                    seed=choice_seed(sampling.seed, choice % per_prompt if seeds_repeat else choice),
                ),
                priority=engine_class(inference.priority),
                group=inference.group,
                flow=inference.tenant_id,
                cache_salt=self._cache_groups.salt_of(inference.tenant_id),
                grammar=grammar,
                parts_thought=request.thinking is not None,
                adapter=self._adapter(request),
                output_kind="delta" if inference.is_streamed else "final_only",
            )
            for choice, id in enumerate(ids)
        ]

    def _add(
        self, inference: Inference, endpoint: TextEndpoint, request: GenerationRequest, ids: Sequence[str]
    ) -> None:
        """Hands all choices to the engine, or none. Raises _Refused, and what else the engine raises."""
        prompts, num_choices = self._prompts(inference, endpoint), request.num_choices
        sequences = self._sequences(inference, request, prompts, ids[:num_choices])
        readings = self._readings(inference, prompts, ids[num_choices:], request.prompt_logprobs_asked)
        added: list[str] = []
        try:
            earlier = self._so_far(inference, sequences)
            running = self._running.get(inference.id)
            if running is not None:  # else it is cancelled
                running.resumed = [len(so_far.token_ids) for so_far in earlier]
                running.answer.begin(prompts)
            resumed = [
                _resumed(sequence, so_far) for sequence, so_far in zip(sequences, earlier, strict=True)
            ]
            for sequence in [*readings, *resumed]:
                self._engine.add(sequence)
                added.append(sequence.id)
        except EngineRefusal as error:
            self._abort(added)
            choice = len(added) - len(readings)
            prompt = len(added) if choice < 0 else choice * len(prompts) // num_choices
            raise _Refused(prompt, error) from error
        except Exception:
            self._abort(added)
            raise

    def _so_far(self, inference: Inference, sequences: Sequence[EngineRequest]) -> Sequence[ChoiceSoFar]:
        """The tokens an earlier attempt generated of each choice; none if they cannot be continued here."""
        carry_over = inference.carry_over
        if carry_over is not None:
            why_not = self._why_not(inference, carry_over, sequences)
            if why_not is None:
                return carry_over.choices
            log.info(
                "request begins anew",
                extra={"action": "carry_over_dropped", "inference": inference.id, "reason": why_not},
            )
        return [ChoiceSoFar() for _ in sequences]

    def _why_not(
        self, inference: Inference, carry_over: CarryOver, sequences: Sequence[EngineRequest]
    ) -> str | None:
        """The reason why the carry-over cannot be continued here; None if it can."""
        misfit = carry_over.misfit([sequence.sampling for sequence in sequences])
        if misfit is not None:
            return misfit
        try:
            for sequence, so_far in zip(sequences, carry_over.choices, strict=True):
                self._engine.check(_resumed(sequence, so_far))  # all choices, before the first is added
            if carry_over.made_by is None:
                return None
            ours = MadeBy.from_json(self.made_by_of(inference.request.model))
            is_exact = ours.accepts(MadeBy.from_json(carry_over.made_by))
        except EngineRefusal as error:
            return str(error)
        if not is_exact:
            log.info(
                "request continues inexactly",
                extra={"action": "carry_over_inexact", "made_by": carry_over.made_by},
            )
        return None

    def _forget(self, inference_id: str) -> _Running | None:
        running = self._running.pop(inference_id, None)
        self._interactive.discard(inference_id)
        for id in running.sequence_ids if running is not None else ():
            self._choices.pop(id, None)
        return running

    def _abort(self, sequence_ids: Sequence[str]) -> None:
        for id in sequence_ids:
            self._engine.abort(id)

    def _prompts(self, inference: Inference, endpoint: TextEndpoint) -> Sequence[tuple[int, ...]]:
        """The tokens of each. Raises InvalidRequest."""
        request = inference.request
        assert isinstance(request, GenerationRequest), "its requests are for text"
        prompts = inference.tokens or self.tokenize(endpoint, [request])[0]
        assert prompts is not None, "it tokenizes what it generates from"
        if isinstance(prompts, InvalidRequest):
            raise prompts
        for number, token_ids in enumerate(prompts):
            if not token_ids:
                place = endpoint.prompt_place(request, number)
                raise InvalidRequest("The prompt has no tokens.", param=place)
        return [tuple(token_ids) for token_ids in prompts]

    def is_repeatable(self, request: ModelRequest) -> bool:
        """Requests without sampling are, and those with a seed."""
        if isinstance(request, TokenizerRequest):
            return True
        assert isinstance(request, GenerationRequest), "its requests are for text"
        temperature = request.temperature
        if temperature is None:
            temperature = self._defaults.temperature
        return request.seed is not None or temperature == 0

    def tokenize(
        self, endpoint: Endpoint, requests: Sequence[ModelRequest]
    ) -> Sequence[Tokens | InvalidRequest | None]:
        if isinstance(endpoint, TokenizerEndpoint):
            return super().tokenize(endpoint, requests)
        assert isinstance(endpoint, TextEndpoint), "the model's kind was checked"
        place_of = endpoint.prompt_place

        def blame(number: int, index: int, error: EngineRefusal) -> InvalidRequest:
            request = requests[number]
            assert isinstance(request, GenerationRequest), "its requests are for text"
            return invalid(error, place_of(request, index))

        return tokenize(self._encode, [self._parts(endpoint, request) for request in requests], blame)

    def _encode(self, texts: Sequence[Text]) -> list[list[int]]:
        """Plain texts get the special tokens that a conversation's text has already."""
        token_ids: list[list[int]] = [[]] * len(texts)
        for is_conversation in (False, True):
            places = [at for at, text in enumerate(texts) if text.is_conversation is is_conversation]
            if places:
                these = [texts[at].text for at in places]
                ids = self._engine.tokenizer.encode_all(these, add_special_tokens=not is_conversation)
                for at, ids_of_text in zip(places, ids, strict=True):
                    token_ids[at] = ids_of_text
        return token_ids

    def _parts(self, endpoint: TextEndpoint, request: ModelRequest) -> list[Part] | InvalidRequest:
        assert isinstance(request, GenerationRequest), "its requests are for text"
        try:
            check_output_length(request, self.context_length)
            self.check_request(request)
            thought_budget(self._engine.tokenizer, request.thinking)
            return [
                self._part(prompt, request.callable_tools, endpoint, endpoint.prompt_place(request, number))
                for number, prompt in enumerate(request.prompts_given)
            ]
        except InvalidRequest as error:
            return error

    def check_request(self, request: GenerationRequest) -> None:
        """Refuses what this kind of model has not: a decoder has no languages to choose. Raises
        InvalidRequest naming the field.
        """
        if (given := next(iter(request.languages), None)) is not None:
            raise InvalidRequest(
                f"'{given}' is for models that translate; '{self.model.id}' {self.model.kind.does}.",
                param=given,
                code="unsupported_parameter",
            )

    def _part(self, prompt: Prompt, tools: Tools | None, endpoint: TextEndpoint, field: str) -> Part:
        check_length(prompt_chars(prompt), self.context_length, field)
        if not isinstance(prompt, Conversation):
            return Text(prompt) if isinstance(prompt, str) else prompt
        tokenizer = self._engine.tokenizer
        check_template(tokenizer.chat_template, prompt, tools, field)
        text = conversation_text(tokenizer, prompt, field, ".".join(endpoint.effort_path))
        return Text(text, is_conversation=True)


def _sequence_ids(inference_id: str, num_choices: int, request: GenerationRequest) -> list[str]:
    """An id per choice, then one per prompt that is read."""
    num_read = request.num_prompts if request.reads_prompts else 0
    ids = [inference_id] if num_choices == 1 else [f"{inference_id}/{n}" for n in range(num_choices)]
    return [*ids, *(f"{inference_id}/prompt{n}" for n in range(num_read))]


def _progress(running: _Running, number: int, output: Output) -> Sequence[Progress]:
    """The news of one of a request's sequences."""
    num_choices = len(running.told)
    if number < num_choices:
        return [running.answer.take(number, output)]
    return running.answer.take_prompt(number - num_choices, output)


def _resumed(sequence: EngineRequest, so_far: ChoiceSoFar) -> EngineRequest:
    return replace(sequence, output_token_ids=tuple(so_far.token_ids), output_logprobs=tuple(so_far.logprobs))
