"""Our engine without a service: rows given in memory, tokenising included, in one process.

Reads the input that the service reads: lines of an OpenAI batch for a decoder, Parquet with a column `text`
for an encoder. The first `--warm-up` rows are run before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class BareRun:
    rows: int
    prompt_tokens: int
    output_tokens: int
    seconds: float

    @classmethod
    def read(cls, path: Path) -> BareRun:
        return cls(**json.loads(path.read_text()))


@dataclass(frozen=True)
class Tokens:
    prompt: int
    output: int


Run = Callable[[Sequence[Any]], Tokens]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--warm-up", type=int, required=True)
    chosen = parser.parse_args(arguments)
    if chosen.input.suffix == ".parquet":
        import pyarrow.parquet as pq

        rows: Sequence[Any] = pq.read_table(chosen.input)["text"].to_pylist()
        run = load_encoder(chosen.model, chosen.dtype, chosen.threads)
    else:
        rows = [json.loads(line) for line in chosen.input.read_text().splitlines()]
        run = load_decoder(chosen.model, chosen.dtype, chosen.threads)
    run(rows[: chosen.warm_up])
    rows = rows[chosen.warm_up :]
    began_s = time.monotonic()
    tokens = run(rows)
    bare_run = BareRun(len(rows), tokens.prompt, tokens.output, time.monotonic() - began_s)
    chosen.result.write_text(json.dumps(asdict(bare_run)))


def load_decoder(path: str, dtype: str, threads: int) -> Run:
    """Loads with the settings that a worker would have."""
    from benchmarks.runners.nightshift import load_engine
    from nightshift.process.settings import WorkerSettings
    from nightshift_engine import Request, SamplingParams
    from workers.serving.kinds.generators import engine_config

    engine = load_engine(engine_config(path, WorkerSettings(dtype=dtype)), threads)

    def run(lines: Sequence[Any]) -> Tokens:
        for line in lines:
            body = line["body"]
            if "messages" in body:
                prompt = engine.tokenizer.render_chat(body["messages"])
            else:
                prompt = engine.tokenizer.encode(body["prompt"])
            sampling = SamplingParams(
                temperature=0.0, max_tokens=body["max_tokens"], ignore_eos=body.get("ignore_eos", False)
            )
            engine.add(
                Request(
                    line["custom_id"],
                    prompt,
                    sampling,
                    priority="background",
                    group="benchmark",
                    output_kind="final_only",  # as the rows of a shard
                )
            )
        ended = []
        while engine.has_work:
            ended += [output for output in engine.step() if output.finish_reason is not None]
        assert len(ended) == len(lines), f"{len(ended)} of {len(lines)} rows have ended"
        return Tokens(sum(o.num_prompt_tokens for o in ended), sum(o.num_output_tokens for o in ended))

    return run


def load_encoder(path: str, dtype: Any, threads: int) -> Run:
    import torch

    from benchmarks.runners.nightshift import encoding
    from nightshift_engine.models import EncoderModel

    torch.set_num_threads(threads)
    model = EncoderModel.load(path, dtype)
    encode = encoding(model)

    def run(texts: Sequence[str]) -> Tokens:
        inputs = model.tokenize_all(texts)
        vectors = encode(inputs)
        assert all(vector is not None for vector in vectors), "not every row has ended"
        return Tokens(sum(len(token_ids) for token_ids in inputs), 0)

    return run


if __name__ == "__main__":
    main()
