"""Metrics of a worker's process: what it holds, its requests, its lazy models."""

from typing import Final

from nightshift.process.metrics.family import CounterFamily, Family, GaugeFamily, HistogramFamily, Process

_WORKER: Final = Process.WORKER
_MODEL: Final = ("model",)
_BY_CLASS: Final = ("model", "class")


def _duration(name: str, help: str, closer: str = "") -> HistogramFamily:
    return HistogramFamily(name=name, help=help, labels=_BY_CLASS, process=_WORKER, closer=closer)


LEASES: Final = GaugeFamily(
    name="nightshift_worker_leases",
    help="Leases held",
    labels=("kind",),
    process=_WORKER,
    closer="a ready worker holds leases and its steps stand still",
)
DRAINING: Final = GaugeFamily(
    name="nightshift_worker_draining", help="1 while it hands its work back", process=_WORKER
)
STEPS: Final = CounterFamily(
    name="nightshift_worker_steps_total", help="Engine steps ended", labels=_MODEL, process=_WORKER
)
STEP_SECONDS: Final = CounterFamily(
    name="nightshift_worker_step_seconds_total",
    help="Time in engine steps that have ended",
    labels=_MODEL,
    process=_WORKER,
)
STEP_AGE: Final = GaugeFamily(
    name="nightshift_worker_step_age_seconds",
    help="Age of the step under way; 0: none is",
    labels=_MODEL,
    process=_WORKER,
    closer="it comes near `STEP_TIMEOUT_S`",
)
ROWS: Final = CounterFamily(
    name="nightshift_worker_rows_total",
    help="Rows of bulk jobs that have ended, with those not in a segment yet",
    labels=_MODEL,
    process=_WORKER,
    closer="its rate falls: throughput in rows",
)
_DIRECTION: Final = ("direction",)
STORAGE_BYTES: Final = CounterFamily(
    name="nightshift_worker_storage_bytes_total",
    help="Bytes of inputs `read`, of segments and unfinished rows `written`",
    labels=_DIRECTION,
    process=_WORKER,
)
STORAGE_SECONDS: Final = CounterFamily(
    name="nightshift_worker_storage_seconds_total",
    help="Time that threads waited for the object store, to read inputs and to write segments",
    labels=_DIRECTION,
    process=_WORKER,
    closer="its rate is high while engines starve: the store is slow",
)
DEVICE_MEMORY: Final = GaugeFamily(
    name="nightshift_worker_device_memory_bytes",
    help="Memory of the worker's device, a CPU's too",
    labels=("device",),
    process=_WORKER,
)
DEVICE_MEMORY_USED: Final = GaugeFamily(
    name="nightshift_worker_device_memory_used_bytes",
    help="Of it, what all processes use",
    labels=("device",),
    process=_WORKER,
    closer="it comes near all: steps run out of memory",
)
DEVICE_UTILISATION: Final = GaugeFamily(
    name="nightshift_worker_device_utilisation",
    help="Share of the last second in which a kernel ran on the worker's GPU, from 0 to 1",
    labels=("device",),
    process=_WORKER,
    closer="it is low while engines are busy: steps are short, or the host is slow",
)
SHARD_SECONDS: Final = CounterFamily(
    name="nightshift_worker_shard_seconds_total",
    help="Time in which the worker held a bulk shard: what jobs are charged with",
    labels=("capacity",),
    process=_WORKER,
)
COST: Final = CounterFamily(
    name="nightshift_worker_cost_total",
    help="That time at `WORKER_PRICE_PER_HOUR_SPOT` or `WORKER_PRICE_PER_HOUR_ON_DEMAND`; missing without it",
    process=_WORKER,
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
PROMPT_TOKENS: Final = CounterFamily(
    name="nightshift_prompt_tokens_total", help="Tokens of requests begun", labels=_BY_CLASS, process=_WORKER
)
GENERATION_TOKENS: Final = CounterFamily(
    name="nightshift_generation_tokens_total",
    help="Tokens generated",
    labels=_BY_CLASS,
    process=_WORKER,
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

MODEL_WARM: Final = GaugeFamily(
    name="nightshift_worker_model_warm", help="1 for each loaded model", labels=_MODEL, process=_WORKER
)
MODEL_LOADS: Final = CounterFamily(
    name="nightshift_worker_model_loads_total", help="Lazy models loaded", process=_WORKER
)
MODEL_LOAD_SECONDS: Final = CounterFamily(
    name="nightshift_worker_model_load_seconds_total",
    help="Time from the decision to load a model, with any to unload first, until it could run",
    process=_WORKER,
)
MODEL_SWAPS: Final = CounterFamily(
    name="nightshift_worker_model_swaps_total",
    help="Loads in place of other models",
    process=_WORKER,
    closer="it grows all the time: more memory, a longer `MODEL_RESIDENCY_S`, or a worker for each",
)
MODEL_REFUSALS: Final = CounterFamily(
    name="nightshift_worker_model_refusals_total",
    help="Loads that failed",
    process=_WORKER,
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
