"""Our own engine, called as a worker calls it: add, then step until nothing is left."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.runners import harness
from benchmarks.workloads import BenchRequest

if TYPE_CHECKING:
    from workers.engine import Engine, EngineConfig, Request


class InvalidSettingError(ValueError):
    """An unknown option or a refused value; the message names it."""


class Nightshift:
    def __init__(self, config: EngineConfig, threads: int) -> None:
        self._engine = load_engine(config, threads)
        self.pid = os.getpid()
        self.version = "this checkout"
        self.settings = {
            field.name: getattr(config, field.name)
            for field in dataclasses.fields(config)
            if field.name != "model" and getattr(config, field.name) != field.default
        }

    def generate(self, requests: Sequence[BenchRequest]) -> dict[int, list[int]]:
        outputs: dict[int, list[int]] = {request.id: [] for request in requests}
        for request in requests:
            self._engine.add(engine_request(request))
        while self._engine.has_work:
            for output in self._engine.step():
                outputs[int(output.id)].extend(output.token_ids)
        return outputs

    def close(self) -> None:
        """Nothing to stop."""


def engine_request(request: BenchRequest) -> Request:
    """A row of a job, as a worker would give it to the engine."""
    from workers.engine import Request, SamplingParams

    sampling = SamplingParams(temperature=0.0, max_tokens=request.num_output_tokens, ignore_eos=True)
    return Request(
        str(request.id), request.prompt_token_ids, sampling, priority="background", group="benchmark"
    )


def add_engine_arguments(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--deterministic", action="store_true", help="the same tokens whatever the batch")
    parser.add_argument("--kv-dtype", metavar="DTYPE", help="dtype of KV memory")
    parser.add_argument("--weights", metavar="DTYPE", help="dtype of the weights in memory, such as int8")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="any other EngineConfig field"
    )


def engine_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """EngineConfig fields from a runner's arguments; only those that the caller asked for are named.

    Raises InvalidSettingError for one this engine does not have.
    """
    from workers.engine import EngineConfig

    known = {field.name for field in dataclasses.fields(EngineConfig)}
    settings: dict[str, Any] = {
        "model": str(arguments.model),
        "device": "cpu",
        "dtype": "bfloat16" if arguments.precision == "int8" else arguments.precision,
        "max_num_seqs": arguments.max_num_seqs,
        "kv_cache_bytes": int(arguments.kv_cache_gib * 2**30),
    }
    asked: dict[str, Any] = {}
    if arguments.deterministic:
        asked["deterministic"] = True
    if arguments.kv_dtype:
        asked["kv_cache_dtype"] = arguments.kv_dtype
    weight_dtype = arguments.weights or ("int8" if arguments.precision == "int8" else None)
    if weight_dtype:
        asked["weight_dtype"] = weight_dtype
    for assignment in arguments.set:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise InvalidSettingError(f"--set takes FIELD=VALUE, got {assignment!r}")
        asked[name] = _parsed(value)
    for name in asked:
        if name not in known:
            raise InvalidSettingError(
                f"this engine has no setting {name!r}; it has {', '.join(sorted(known))}"
            )
    return settings | asked


def _parsed(value: str) -> Any:
    """Numbers, true, false and null as such, anything else as text."""
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def load_engine(config: EngineConfig, threads: int) -> Engine:
    """The engine, on so many threads of torch's pool."""
    import torch

    from workers.engine import Engine

    torch.set_num_threads(threads)
    return Engine.load(config)


def load(arguments: argparse.Namespace) -> Nightshift:
    from workers.engine import EngineConfig

    return Nightshift(EngineConfig(**engine_settings(arguments)), arguments.threads)


def parser() -> argparse.ArgumentParser:
    result = harness.argument_parser("Run a workload on Nightshift's engine.")
    add_engine_arguments(result)
    return result


if __name__ == "__main__":
    try:
        status = harness.run(load, parser())
    except InvalidSettingError as error:
        raise SystemExit(str(error)) from None
    raise SystemExit(status)
