"""An encoder-decoder: a prompt is its source, and languages are tokens of the source and of the output."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nightshift.endpoints.texts.generation import GenerationRequest
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import Model
from nightshift.tenants.cache_groups import NO_GROUPS, CacheGroups
from nightshift_engine import Engine
from nightshift_engine import Request as EngineRequest
from nightshift_engine.models import DecodingRules
from workers.serving.inference import SamplingDefaults
from workers.serving.model_server import Inference, OnFatal
from workers.serving.servers.text_server import TextServer

_SHOWN_MAX = 8


class Seq2seqServer(TextServer):
    """Runs requests for text on an engine over an encoder-decoder."""

    def __init__(
        self,
        model: Model,
        engine: Engine,
        on_fatal: OnFatal,
        defaults: SamplingDefaults,
        rules: DecodingRules,
        cache_groups: CacheGroups = NO_GROUPS,
    ) -> None:
        super().__init__(model, engine, on_fatal, defaults, cache_groups)
        self._rules = rules
        self._languages = engine.tokenizer.languages
        self._codes = frozenset(self._languages.values())

    def check_request(self, request: GenerationRequest) -> None:
        """Refuses what asks for a prompt's tokens: a source is none. Raises InvalidRequest naming that field,
        or one whose language the model does not have, or lacks.
        """
        wishes = {
            "prompt_logprobs": request.prompt_logprobs_shown is not None,
            "echo": request.echoed(0),
            "return_token_ids": request.shows_token_ids,
        }
        if field := next((name for name, is_wished in wishes.items() if is_wished), None):
            raise InvalidRequest(
                f"'{field}' is for decoders: '{self.model.id}' {self.model.kind.does}.",
                param=field,
                code="unsupported_parameter",
            )
        for field, language in request.languages.items():
            self._language(field, language)
        start, forced = self._rules.start_token_id, self._rules.forced_bos_token_id
        has_own = forced is not None or start in self._codes
        if self._languages and not has_own and "target_language" not in request.languages:
            raise InvalidRequest(
                f"'target_language' is missing: one of {self._known()}.",
                param="target_language",
                code="missing_required_parameter",
            )
        if "source_language" in request.languages and not all(
            isinstance(prompt, str) for prompt in request.prompts_given
        ):
            raise InvalidRequest(
                "'source_language' is for prompts of text: token ids have their language's already.",
                param="source_language",
            )

    def _sequences(
        self,
        inference: Inference,
        request: GenerationRequest,
        prompts: Sequence[tuple[int, ...]],
        ids: Sequence[str],
    ) -> list[EngineRequest]:
        """The sequences, as of a decoder, with the source and the decoder's first tokens in place of the
        prompt.

        Without `max_tokens` an output is as long as it gets: a translation that is cut is of no use.
        """
        sequences = super()._sequences(inference, request, prompts, ids)
        start = self._start(request.languages)
        is_bounded = any(limit is not None for limit in request.output_limits.values())
        return [self._with_source(sequence, request, start, is_bounded) for sequence in sequences]

    def _with_source(
        self, sequence: EngineRequest, request: GenerationRequest, start: Sequence[int], is_bounded: bool
    ) -> EngineRequest:
        source = self._in_language(sequence.prompt_token_ids, request.languages)
        sampling = sequence.sampling
        return replace(
            sequence,
            prompt_token_ids=start,
            source_token_ids=source,
            sampling=sampling if is_bounded else replace(sampling, max_tokens=None),
        )

    def _start(self, languages: Mapping[str, str]) -> list[int]:
        """The tokens that the decoder reads before its first output: a target language replaces the model's
        own.
        """
        start, forced = self._rules.start_token_id, self._rules.forced_bos_token_id
        target = languages.get("target_language")
        if target is None:
            return [start] if forced is None else [start, forced]
        code = self._language("target_language", target)
        return [code] if start in self._codes else [start, code]

    def _in_language(self, source: Sequence[int], languages: Mapping[str, str]) -> list[int]:
        """A source whose language's token, its first or its last ones, is another."""
        token_ids = list(source)
        language = languages.get("source_language")
        if language is None:
            return token_ids
        code = self._language("source_language", language)
        places = [
            at
            for at in {0, len(token_ids) - 2, len(token_ids) - 1}
            if at >= 0 and token_ids[at] in self._codes
        ]
        if not places:
            raise InvalidRequest(
                f"'{self.model.id}' reads sources without a token for their language.",
                param="source_language",
                code="invalid_value",
            )
        for at in places:
            token_ids[at] = code
        return token_ids

    def _language(self, field: str, language: str) -> int:
        if not self._languages:
            raise InvalidRequest(
                f"'{field}' is not supported by this model: '{self.model.id}' has no languages to choose "
                "among. Models whose tokenizers do, such as M2M-100 and mBART, take it.",
                param=field,
                code="unsupported_parameter",
            )
        if (code := self._languages.get(language)) is None:
            raise InvalidRequest(
                f"Invalid '{field}': the model has no language {language!r}, only {self._known()}.",
                param=field,
                code="invalid_value",
            )
        return code

    def _known(self) -> str:
        names = sorted(self._languages)
        shown = ", ".join(names[:_SHOWN_MAX])
        return shown if len(names) <= _SHOWN_MAX else f"{shown} and {len(names) - _SHOWN_MAX} others"
