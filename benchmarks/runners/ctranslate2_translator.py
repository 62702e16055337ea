"""CTranslate2's Translator on the work of `benchmarks.translation`, in CTranslate2's own environment.

    python ctranslate2_translator.py CHECKPOINT WORK.json PRECISION THREADS BATCH_SIZE...

WORK.json has `[source, number of output tokens]` of each row. One line per batch size is printed, of JSON.
Sources are sorted by length, as `translate_batch` itself would, and a row leaves its batch at its own length.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = tuple[list[int], int]
WARM_UP = 4


def name(token_id: int) -> str:
    """Its vocabulary holds names, and the ids are all that is needed."""
    return f"t{token_id}"


def convert(checkpoint: str, directory: str, quantization: str) -> None:
    """As its converter does, with the whole vocabulary, and the start token's embedding as it is stored."""
    import transformers
    from ctranslate2.converters import TransformersConverter
    from ctranslate2.converters.transformers import MarianMTLoader, register_loader

    config: Any = transformers.AutoConfig.from_pretrained(checkpoint)
    names = [name(token_id) for token_id in range(config.vocab_size)]

    @register_loader("MarianConfig")
    class Loader(MarianMTLoader):  # type: ignore[misc]
        def get_vocabulary(self, model: Any, tokenizer: Any) -> list[str]:
            return names

        def set_vocabulary(self, spec: Any, tokens: list[str]) -> None:
            spec.register_source_vocabulary(tokens)
            spec.register_target_vocabulary(tokens)

        def set_config(self, config: Any, model: Any, tokenizer: Any) -> None:
            config.decoder_start_token = name(model.config.decoder_start_token_id)
            config.eos_token = name(model.config.eos_token_id)
            config.bos_token = name(model.config.bos_token_id)
            config.unk_token = name(0)
            config.add_source_eos = False

        def set_decoder(self, spec: Any, decoder: Any) -> None:
            super().set_decoder(spec, decoder)
            spec.start_from_zero_embedding = False

        def _remove_pad_weights(self, spec: Any) -> None:
            """The output may have any token here."""

    TransformersConverter(checkpoint).convert(directory, quantization=quantization, force=True)


def translate(translator: Any, work: Sequence[Row], batch_size: int) -> list[list[int]]:
    order = sorted(range(len(work)), key=lambda row: len(work[row][0]))
    answers: list[list[int]] = [[] for _ in work]
    for at in range(0, len(order), batch_size):
        rows = order[at : at + batch_size]

        def take(step: Any, rows: list[int] = rows) -> bool:
            """Keep a token; True ends its row."""
            row = rows[int(step.batch_id)]
            if len(answers[row]) < work[row][1]:
                answers[row].append(int(step.token_id))
            return len(answers[row]) >= work[row][1]

        longest = max(work[row][1] for row in rows)
        translator.translate_batch(
            [[name(token_id) for token_id in work[row][0]] for row in rows],
            beam_size=1,
            max_decoding_length=longest,
            min_decoding_length=longest,
            max_input_length=0,
            callback=take,
            max_batch_size=0,
        )
    return answers


def main(checkpoint: str, work_file: str, precision: str, threads: str, *batch_sizes: str) -> None:
    import ctranslate2

    work = [(source, count) for source, count in json.loads(Path(work_file).read_text())]
    with tempfile.TemporaryDirectory() as directory:
        convert(checkpoint, directory, precision)
        translator: Any = ctranslate2.Translator(
            directory, device="cpu", compute_type=precision, inter_threads=1, intra_threads=int(threads)
        )
    for size in map(int, batch_sizes):
        translate(translator, work[:WARM_UP], size)
        began_s = time.monotonic()
        answers = translate(translator, work, size)
        seconds = time.monotonic() - began_s
        said = {
            "batch_size": size,
            "seconds": seconds,
            "answers": answers,
            "version": ctranslate2.__version__,
        }
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
