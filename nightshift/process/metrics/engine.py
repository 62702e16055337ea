"""Metrics of a worker's engines, one for each loaded model."""

from typing import Final

from nightshift.process.metrics.family import CounterFamily, Family, GaugeFamily, HistogramFamily, Process

_MODEL: Final = ("model",)


def _gauge(name: str, help: str, closer: str = "") -> GaugeFamily:
    name = f"nightshift_engine_{name}"
    return GaugeFamily(name=name, help=help, labels=_MODEL, process=Process.WORKER, closer=closer)


def _counter(name: str, help: str, closer: str = "") -> CounterFamily:
    name = f"nightshift_engine_{name}_total"
    return CounterFamily(name=name, help=help, labels=_MODEL, process=Process.WORKER, closer=closer)


BUSY: Final = _gauge(
    "busy_fraction",
    "Share of the last 10 seconds in which an engine was in a step",
    "it is below 1 while rows remain: the engine waits for its input or its store",
)
ROOFLINE: Final = _gauge(
    "roofline_fraction",
    "Share of the last 10 seconds in steps that their reads and arithmetic take at the best that the device "
    "was seen to do when the model was loaded. Missing where that is not known: encoder-decoders, models of "
    "images, and encoders that are not built like BERT or not on a CPU",
    "it is low while steps are large: time goes into what is neither. Above 1: the device was busy when it "
    "was measured",
)
STARVED: Final = _counter(
    "starved_seconds",
    "Time without a step although a shard for it was held: the engine waited for rows, or for the store",
    "its rate comes near 1: rows are read or tokenized too slowly, or segments are stored too slowly",
)
BATCH_SIZE: Final = HistogramFamily(
    name="nightshift_batch_size",
    help="Sequences or inputs of a step",
    labels=_MODEL,
    process=Process.WORKER,
    closer="steps are small while sequences wait",
)
TOKENS_PER_STEP: Final = HistogramFamily(
    name="nightshift_tokens_per_step",
    help="Tokens of a step, padding not counted",
    labels=_MODEL,
    process=Process.WORKER,
)
EAGER_STEPS: Final = CounterFamily(
    name="nightshift_engine_eager_steps_total",
    help="Steps on CUDA that ran kernel by kernel and not as a graph: `turned_off`, `attention_backend` and "
    "`encoder_decoder` (neither can be one), `not_recorded` (the log says why), `too_large`, "
    "`prompt_logprobs` (it scores prompts), `adapters` (it has some)",
    labels=("model", "reason"),
    process=Process.WORKER,
    closer="it grows: such a step takes as long as its kernels' launches from Python",
)

# By the attribute of `EngineStats`, or of `EncoderStats` where that has it.
OF_STATS: Final[dict[str, CounterFamily | GaugeFamily]] = {
    "running": _gauge("sequences_running", "Sequences with a slot"),
    "waiting": _gauge(
        "sequences_waiting",
        "Sequences or inputs without a slot",
        "many wait and few run for long: the model needs more workers, or more KV memory",
    ),
    "blocks_used": _gauge(
        "kv_blocks_used",
        "KV blocks held",
        "all blocks are used and preemptions grow: KV memory bounds the speed",
    ),
    "blocks_total": _gauge("kv_blocks", "KV blocks in all"),
    "max_num_batched_tokens": _gauge(
        "step_tokens_max", "Tokens a step may have now; fewer for a while after one ran out of memory"
    ),
    "steps": _counter("steps", "Steps computed", "its rate falls while sequences wait"),
    "tokens_computed": _counter(
        "tokens_computed", "Tokens that went through the model, prompts and recomputation included"
    ),
    "tokens_padded": _counter(
        "tokens_padded",
        "Padding of an encoder's passes, in tokens",
        "it is much beside the tokens computed ([batching.md](batching.md))",
    ),
    "tokens_generated": _counter("tokens_generated", "Tokens sampled"),
    "roofline_seconds": _counter(
        "roofline_seconds",
        "The least time in which the device could have computed the steps: their reads, or their arithmetic",
        "its rate is far below that of `nightshift_worker_step_seconds_total`",
    ),
    "tokens_queried": _counter(
        "prefix_queries", "Prefix queries: tokens of admitted sequences whose KV was looked for in memory"
    ),
    "tokens_reused": _counter(
        "tokens_reused",
        "Prefix hits: tokens whose KV was found instead of computed",
        "rows share a beginning and its share of the prefix queries is small",
    ),
    "tokens_recomputed": _counter(
        "tokens_recomputed", "Tokens computed again after a preemption", "it is much: what preemptions cost"
    ),
    "preemptions": _counter(
        "preemptions",
        "Sequences that lost their slot or blocks to others",
        "it grows: more KV memory is needed",
    ),
    "num_drafts": _counter("spec_decode_num_drafts", "Times that tokens were drafted for a sequence"),
    "num_draft_tokens": _counter(
        "spec_decode_num_draft_tokens", "Tokens drafted, each of which was computed"
    ),
    "num_accepted_tokens": _counter(
        "spec_decode_num_accepted_tokens",
        "Drafted tokens that the model would have sampled one by one",
        "its share of the drafted tokens is small: drafting costs more than it saves",
    ),
    "deferrals": _counter("prefix_deferrals", "Sequences that waited for a prefix another was computing"),
    "out_of_memory": _counter(
        "steps_out_of_memory",
        "Steps that ran out of memory and were planned anew, smaller",
        "it grows: steps are smaller than configured until memory suffices again",
    ),
}

SECTIONS: Final[dict[str, tuple[Family, ...]]] = {
    "Engines": (BUSY, ROOFLINE, STARVED, BATCH_SIZE, TOKENS_PER_STEP, EAGER_STEPS, *OF_STATS.values())
}
