"""The configuration of an engine: plain values, checked when made. No torch, so they can be made anywhere."""

from dataclasses import dataclass

from ..errors import InvalidConfig

DTYPE_NAMES = ("auto", "float32", "bfloat16", "float16")
WEIGHT_DTYPE_NAMES = ("auto", "int8", "int4", "fp8")
KV_CACHE_DTYPE_NAMES = (*DTYPE_NAMES, "int8", "fp8")
SPECULATION_NAMES = ("auto", "off")
ATTENTION_BACKEND_NAMES = ("auto", "torch", "native", "triton", "varlen")


@dataclass(frozen=True, slots=True)
class AdapterPath:
    """An adapter's name, and the directory of its files."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything `Engine.load` needs. Raises `InvalidConfig` naming the field."""

    model: str
    """A local directory or a hub id. Weights must be safetensors; no code from a repository is run."""
    revision: str | None = None
    dtype: str = "auto"
    """auto: the checkpoint's own on CUDA; on CPU float32, but bfloat16 if stored so and faster so."""
    weight_dtype: str = "auto"
    """auto keeps weights as they are stored; others round those of linear layers. int4: in groups of a row.
    int8: by row, and on a CPU inputs too. fp8 (e4m3): by row, and inputs too, on CUDA 8.9 and later."""
    deterministic: bool = False
    """Bitwise equal results however requests are batched, cut, preempted, resumed. float32 on CPU only."""
    device: str = "auto"
    """auto: CUDA if there is one, else CPU."""
    attention_backend: str = "auto"
    """auto: the fastest that runs on the device. torch runs everywhere, native on CPU, triton on CUDA;
    varlen is torch's own kernel on CUDA, from torch 2.12 on, and needs blocks of a multiple of 256 tokens."""
    kv_cache_dtype: str = "auto"
    """auto: that of the computation. Narrower ones hold more tokens and change outputs a little; int8 and
    fp8 (e4m3, less exact) have a scale per token and head. On CUDA triton keeps those two or the
    computation's, and torch any but fp8."""
    block_size: int = 32
    """Tokens per KV block: the unit of allocation and of prefix reuse."""
    num_kv_blocks: int | None = None
    """Size of KV memory in blocks; wins over kv_cache_bytes."""
    kv_cache_bytes: int | None = None
    """Size of KV memory in bytes; None takes what the device may give: see gpu_memory_utilization."""
    gpu_memory_utilization: float = 0.9
    """Share of a CUDA device's memory that this process takes for weights, steps and KV of all its
    engines."""
    tensor_parallel_size: int = 1
    """Devices of this machine that compute the model together, each with some of its heads, MLP columns and
    vocabulary. For plain decoders; a process for each but the first."""
    max_num_seqs: int = 128
    """Sequences running at once. More is faster until the step is bound by arithmetic."""
    max_num_batched_tokens: int = 1024
    """Tokens per step. Bounds the time of a step, which an interactive request may have to wait for."""
    cuda_graphs: bool = True
    """Replay steps as CUDA graphs, recorded at load. Without effect on a CPU."""
    overlap_steps: bool | None = None
    """Launch a step before the tokens of the one before are read. Outputs are the same; a stop is found one
    step late, at the cost of a discarded token. None: on CUDA, where it hides the work on the host."""
    max_model_len: int | None = None
    """Context in tokens, prompt and output together; None takes the model's own."""
    interactive_step_budget_ms: float | None = 50.0
    """Time a step should take while there is interactive traffic: bulk prompts get smaller chunks. A request
    waits for the step in progress when it comes, so this is what bulk adds to its time to first token at
    most; 50 ms is below what a reader notices. None: bulk is never held back."""
    group_admissions: bool | None = None
    """Admit bulk once a sixteenth of `max_num_seqs` is free, or after 16 steps, unless an interactive request
    waits: prompts share steps. None: on CUDA, where a step with a prompt costs more than its tokens."""
    enable_prefix_reuse: bool = True
    """Find KV of a shared beginning instead of computing it again."""
    speculation: str = "off"
    """auto: draft tokens from the prompt, the outputs of the same job and the grammar, where that is measured
    to pay. The model checks them, so outputs are those of a step per token."""
    draft_model: str | None = None
    """Directory or hub id of a smaller decoder with the same tokenizer, which drafts too. It has weights and
    KV memory of its own."""
    adapters: tuple[AdapterPath, ...] = ()
    """LoRA adapters that requests may name. For decoders that are written out."""
    max_loras: int = 16
    """Adapters on the device at a time; named as in vLLM."""

    def __post_init__(self) -> None:
        _require(bool(self.model), "model", "must be a path or an id", self.model)
        for name, names in (
            ("dtype", DTYPE_NAMES),
            ("attention_backend", ATTENTION_BACKEND_NAMES),
            ("kv_cache_dtype", KV_CACHE_DTYPE_NAMES),
            ("weight_dtype", WEIGHT_DTYPE_NAMES),
            ("speculation", SPECULATION_NAMES),
        ):
            value = getattr(self, name)
            _require(value in names, name, f"must be one of {', '.join(names)}", value)
        if self.deterministic:
            is_float32 = self.dtype in ("auto", "float32")
            _require(is_float32, "dtype", "must be float32 to be deterministic", self.dtype)
            is_auto = self.weight_dtype == "auto"
            _require(is_auto, "weight_dtype", "must be auto to be deterministic", self.weight_dtype)
            is_native = self.attention_backend in ("auto", "native")
            what = "must be native to be deterministic"
            _require(is_native, "attention_backend", what, self.attention_backend)
        for name in (
            "block_size",
            "tensor_parallel_size",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_loras",
        ):
            value = getattr(self, name)
            _require(_is_count(value), name, "must be an integer of at least 1", value)
        if self.tensor_parallel_size > 1:
            what = "must be 1 to be deterministic, or with rounded weights"
            is_split = not self.deterministic and self.weight_dtype == "auto"
            _require(is_split, "tensor_parallel_size", what, self.tensor_parallel_size)
        if self.draft_model is not None:
            _require(self.speculation == "auto", "speculation", "must be auto with a draft_model", "off")
        if self.adapters or self.draft_model is not None:
            what = "must be 1 with adapters or a draft_model"
            _require(self.tensor_parallel_size == 1, "tensor_parallel_size", what, self.tensor_parallel_size)
            _require(
                self.weight_dtype == "auto", "weight_dtype", "must be auto with adapters", self.weight_dtype
            )
        for name in ("num_kv_blocks", "kv_cache_bytes", "max_model_len"):
            value = getattr(self, name)
            _require(
                value is None or _is_count(value), name, "must be an integer of at least 1 or None", value
            )
        for name in ("deterministic", "cuda_graphs", "enable_prefix_reuse"):
            _require(isinstance(getattr(self, name), bool), name, "must be a bool", getattr(self, name))
        share = self.gpu_memory_utilization
        is_share = isinstance(share, (int, float)) and not isinstance(share, bool) and 0 < share <= 1
        _require(is_share, "gpu_memory_utilization", "must be more than 0 and at most 1", share)
        for name in ("overlap_steps", "group_admissions"):
            value = getattr(self, name)
            _require(isinstance(value, bool | None), name, "must be a bool or None", value)
        budget_ms = self.interactive_step_budget_ms
        is_time = isinstance(budget_ms, (int, float)) and not isinstance(budget_ms, bool) and budget_ms > 0
        what = "must be more than 0 or None"
        _require(budget_ms is None or is_time, "interactive_step_budget_ms", what, budget_ms)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _require(valid: bool, name: str, requirement: str, value: object) -> None:
    if not valid:
        raise InvalidConfig(f"{name} {requirement}, got {value!r}")
