"""Metrics of a worker's process: what it holds, its requests, its lazy models."""

from functools import partial
from typing import Final

from nightshift.process.metrics.family import CounterFamily, Family, GaugeFamily, HistogramFamily, Process

_gauge: Final = partial(GaugeFamily, process=Process.WORKER)
_counter: Final = partial(CounterFamily, process=Process.WORKER)
_histogram: Final = partial(HistogramFamily, process=Process.WORKER)
_MODEL: Final = ("model",)
_BY_CLASS: Final = ("model", "class")


def _duration(name: str, help: str, closer: str = "") -> HistogramFamily:
    return _histogram(name=name, help=help, labels=_BY_CLASS, closer=closer)


LEASES: Final = _gauge(
    name="nightshift_worker_leases",
    help="Leases held",
    labels=("kind",),
    closer="a ready worker holds leases and its steps stand still",
)
DRAINING: Final = _gauge(name="nightshift_worker_draining", help="1 while it hands its work back")
STEPS: Final = _counter(name="nightshift_worker_steps_total", help="Engine steps ended", labels=_MODEL)
STEP_SECONDS: Final = _counter(
    name="nightshift_worker_step_seconds_total",
    help="Time in engine steps that have ended",
    labels=_MODEL,
)
STEP_AGE: Final = _gauge(
    name="nightshift_worker_step_age_seconds",
    help="Age of the step under way; 0: none is",
    labels=_MODEL,
    closer="it comes near `STEP_TIMEOUT_S`",
)
ROWS: Final = _counter(
    name="nightshift_worker_rows_total",
    help="Rows of bulk jobs that have ended, with those not in a segment yet",
    labels=_MODEL,
    closer="its rate falls: throughput in rows",
)
_DIRECTION: Final = ("direction",)
STORAGE_BYTES: Final = _counter(
    name="nightshift_worker_storage_bytes_total",
    help="Bytes of inputs `read`, of segments and unfinished rows `written`",
    labels=_DIRECTION,
)
STORAGE_SECONDS: Final = _counter(
    name="nightshift_worker_storage_seconds_total",
    help="Time that threads waited for the object store, to read inputs and to write segments",
    labels=_DIRECTION,
    closer="its rate is high while engines starve: the store is slow",
)
DEVICE_MEMORY: Final = _gauge(
    name="nightshift_worker_device_memory_bytes",
    help="Memory of the worker's device, a CPU's too",
    labels=("device",),
)
DEVICE_MEMORY_USED: Final = _gauge(
    name="nightshift_worker_device_memory_used_bytes",
    help="Of it, what all processes use",
    labels=("device",),
    closer="it comes near all: steps run out of memory",
)
DEVICE_UTILISATION: Final = _gauge(
    name="nightshift_worker_device_utilisation",
    help="Share of the last second in which a kernel ran on the worker's GPU, from 0 to 1",
    labels=("device",),
    closer="it is low while engines are busy: steps are short, or the host is slow",
)
SHARD_SECONDS: Final = _counter(
    name="nightshift_worker_shard_seconds_total",
    help="Time in which the worker held a bulk shard: what jobs are charged with",
    labels=("capacity",),
)
COST: Final = _counter(
    name="nightshift_worker_cost_total",
    help="That time at `WORKER_PRICE_PER_HOUR_SPOT` or `WORKER_PRICE_PER_HOUR_ON_DEMAND`; missing without it",
    closer="its rate is more than was planned for",
)
WORK: Final = (
    LEASES,
    DRAINING,
    ROWS,
    STORAGE_BYTES,
    STORAGE_SECONDS,
    SHARD_SECONDS,
    COST,
    STEPS,
    STEP_SECONDS,
    STEP_AGE,
)

FIRST_TOKEN: Final = _duration(
    "nightshift_time_to_first_token_seconds",
    "From the submit of an online request to its first token",
    "online requests are slow to begin",
)
REQUEST: Final = _duration(
    "nightshift_request_seconds",
    "From the submit of an online request to its answer",
    "online requests are slow",
)
QUEUE_SECONDS: Final = _duration(
    "nightshift_queue_seconds",
    "From a request's arrival at the engine to the first step with some of it",
    "a request's time goes into waiting in the engine",
)
PREFILL: Final = _duration(
    "nightshift_prefill_seconds", "From then to its first token", "a request's time goes into its prompt"
)
INTER_TOKEN: Final = _duration(
    "nightshift_inter_token_seconds",
    "Between two tokens of a sequence",
    "answers flow slowly: steps are long, or sequences are preempted",
)
DECODE: Final = _duration("nightshift_decode_seconds", "From a sequence's first token to its last")
PROMPT_TOKENS: Final = _counter(
    name="nightshift_prompt_tokens_total", help="Tokens of requests begun", labels=_BY_CLASS
)
GENERATION_TOKENS: Final = _counter(
    name="nightshift_generation_tokens_total",
    help="Tokens generated",
    labels=_BY_CLASS,
    closer="its rate falls: throughput by class",
)
REQUESTS: Final = (
    FIRST_TOKEN,
    REQUEST,
    QUEUE_SECONDS,
    PREFILL,
    INTER_TOKEN,
    DECODE,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
)

MODEL_WARM: Final = _gauge(name="nightshift_worker_model_warm", help="1 for each loaded model", labels=_MODEL)
MODEL_LOADS: Final = _counter(name="nightshift_worker_model_loads_total", help="Lazy models loaded")
MODEL_LOAD_SECONDS: Final = _counter(
    name="nightshift_worker_model_load_seconds_total",
    help="Time from the decision to load a model, with any to unload first, until it could run",
)
MODEL_SWAPS: Final = _counter(
    name="nightshift_worker_model_swaps_total",
    help="Loads in place of other models",
    closer="it grows all the time: more memory, a longer `MODEL_RESIDENCY_S`, or a worker for each",
)
MODEL_REFUSALS: Final = _counter(
    name="nightshift_worker_model_refusals_total",
    help="Loads that failed",
    closer="it grows: a lazy model cannot be loaded; the log says why",
)
LAZY_MODELS: Final = (MODEL_WARM, MODEL_LOADS, MODEL_LOAD_SECONDS, MODEL_SWAPS, MODEL_REFUSALS)

DEVICE: Final = (DEVICE_MEMORY, DEVICE_MEMORY_USED, DEVICE_UTILISATION)

SECTIONS: Final[dict[str, tuple[Family, ...]]] = {
    "Workers": WORK,
    "Devices of workers": DEVICE,
    "Requests in workers": REQUESTS,
    "Lazy models": LAZY_MODELS,
}
