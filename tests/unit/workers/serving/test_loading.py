"""Settings of a worker reach the engine, or are refused by name."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, BertConfig, BertModel, Qwen3ForCausalLM

from nightshift.cli.demo import DEMO_MODEL_ID
from nightshift.errors import ConfigurationError
from nightshift.fleet.models import ModelKind
from nightshift.process import memory
from nightshift.process.settings import WorkerSettings
from nightshift_engine import EngineConfig
from nightshift_engine.models import DeviceMemory, EncoderModel, Footprint
from tests.unit.engine.tiny.decoders import save_model
from tests.unit.engine.tiny.encoders import SIZES, declare_modules, save_checkpoint
from tests.unit.workers.serving.conftest import SETTINGS, SHIPPED, chat, load, started, texts
from workers.serving import loading
from workers.serving.kinds import Decoders, Encoders, one_pass
from workers.serving.kinds.generators import engine_config
from workers.serving.loading import load_models
from workers.serving.models import LazyModel
from workers.serving.servers.text_server import TextServer

needs_native = pytest.mark.skipif(
    "avx512_vnni" not in Path("/proc/cpuinfo").read_text(), reason="this CPU has no kernel for int8"
)


DEMO, MINILM = SHIPPED


def engine(**settings: Any) -> Any:
    [server] = load(DEMO, dtype="auto", **settings)
    assert isinstance(server, TextServer)
    return server._engine


def made_by(**settings: Any) -> Any:
    return engine(**settings).made_by


@needs_native
def test_precision_and_determinism_are_the_operators_to_set() -> None:
    plain = made_by()
    assert (plain.deterministic, plain.weight_dtype, plain.kv_cache_dtype) == (False, "auto", "float32")
    rounded = made_by(engine_weight_dtype="int8", engine_kv_cache_dtype="int8")
    assert (rounded.weight_dtype, rounded.kv_cache_dtype) == ("int8", "int8")
    assert made_by(deterministic=True).deterministic


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("ENGINE_MAX_NUM_BATCHED_TOKENS", "0", "is '0': it should be greater than or equal to 1"),
        ("ENGINE_MAX_NUM_BATCHED_TOKENS", "many", "is 'many': it should be a valid integer"),
        ("ENGINE_MAX_NUM_SEQS", "-1", "is '-1': it should be greater than or equal to 1"),
        ("ENGINE_MAX_MODEL_LEN", "0", "is '0': it should be greater than or equal to 1"),
        ("ENGINE_MAX_MODEL_LEN", "257", "257 exceeds the model's context of 256 tokens"),
        ("ENGINE_BLOCK_SIZE", "0", "is '0': it should be greater than or equal to 1"),
        ("ENGINE_GPU_MEMORY_UTILIZATION", "0", "is '0': it should be greater than 0"),
        ("ENGINE_GPU_MEMORY_UTILIZATION", "90", "is '90': it should be less than or equal to 1"),
        ("ENGINE_ATTENTION_BACKEND", "flash", "must be one of auto, torch, native, triton, varlen, got"),
        ("ENGINE_ATTENTION_BACKEND", "varlen", "'varlen' does not run here"),
        ("ENGINE_WEIGHT_DTYPE", "int3", "must be one of auto, int8, int4, fp8, got 'int3'"),
        ("ENGINE_KV_CACHE_DTYPE", "int3", "must be one of"),
        ("ENGINE_KV_CACHE_DTYPE", "fp8", "'fp8' needs triton and a CUDA device"),
        ("DTYPE", "bfloat16", "must be float32"),
        ("DEVICE", "tpu", "'tpu' is not a torch device"),
    ],
)
def test_a_bad_value_in_the_environment_is_refused_by_the_settings_name(
    monkeypatch: pytest.MonkeyPatch, setting: str, value: str, said: str
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_DEVICE", "cpu")
    monkeypatch.setenv("NIGHTSHIFT_MODELS", str(DEMO))
    monkeypatch.setenv("NIGHTSHIFT_DETERMINISTIC", str(setting == "DTYPE"))
    monkeypatch.setenv(f"NIGHTSHIFT_{setting}", value)

    with pytest.raises(ConfigurationError) as refused:
        load_models(WorkerSettings(), lambda _: None)

    assert f"NIGHTSHIFT_{setting} {said}" in refused.value.message


def test_limits_of_steps_and_memory_are_the_operators_to_set() -> None:
    chosen = engine(
        engine_max_num_batched_tokens=48,
        engine_max_model_len=64,
        engine_block_size=16,
        engine_num_kv_blocks=40,
        engine_attention_backend="torch",
    )
    assert chosen.stats().max_num_batched_tokens == 48
    assert chosen.context_length == 64
    assert (chosen._pool.block_size, chosen._pool.num_blocks) == (16, 40)
    assert chosen.made_by.attention_backend == "torch"
    config = engine_config(
        "m", WorkerSettings(engine_gpu_memory_utilization=0.5, engine_tensor_parallel_size=2)
    )
    assert (config.gpu_memory_utilization, config.tensor_parallel_size) == (0.5, 2)


def test_without_settings_the_engine_has_its_own_defaults() -> None:
    assert engine_config("m", WorkerSettings()) == EngineConfig("m")


def test_models_of_one_device_have_equal_parts_of_what_is_free_once_all_are_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DeviceMemory, "measure", lambda device, share: DeviceMemory(2**24, 2**26))
    alone, *both = (server._engine._pool.num_blocks for count in (1, 2) for server in load(*[DEMO] * count))

    assert both == [alone // 2] * 2


def test_a_device_is_shared_by_what_it_has_when_all_weights_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """80 GB of which 10 belong to other processes and 30 to the weights of all models."""
    gb = 10**9
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (40 * gb, 80 * gb))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 30 * gb)
    device = torch.device("cuda:1")

    assert DeviceMemory.measure(device, 1.0).in_all == 40 * gb
    memory = DeviceMemory.measure(device, 0.75)
    assert memory.in_all == 30 * gb
    assert [memory.shared_by(3).kv_bytes(step_bytes=gb)] * 3 == [9 * gb] * 3
    assert DeviceMemory.measure(device, 0.3).kv_bytes(step_bytes=0) == 0


def test_an_encoder_goes_where_decoders_go(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = []

    def note(directory: str, dtype: str, device: str) -> None:
        devices.append(device)
        raise ValueError("no encoder is made")

    monkeypatch.setattr(loading, "resolve_device", lambda name: torch.device("cpu"))
    monkeypatch.setattr(one_pass, "encoder_footprint", lambda *_: Footprint(1, 1))
    monkeypatch.setattr(EncoderModel, "load", note)
    with pytest.raises(ConfigurationError, match="no encoder is made"):
        load(MINILM, device="cuda:1")

    assert devices == ["cuda:1"]


def test_the_same_architecture_generates_or_embeds_as_its_files_say(tmp_path: Path) -> None:
    config = AutoConfig.for_model("qwen3", vocab_size=64, num_key_value_heads=2, head_dim=8, **SIZES)
    directory = save_checkpoint(tmp_path, Qwen3ForCausalLM(config))

    [generating] = load(directory)
    declare_modules(directory, {"pooling_mode": "lasttoken"}, "Transformer", "Pooling", "Normalize")
    [embedding] = load(directory)

    assert (generating.model.kind, embedding.model.kind) == (ModelKind.DECODER, ModelKind.ENCODER)


def test_whatever_a_models_code_raises_ends_in_a_refusal_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any) -> None:
        raise AttributeError("no such layer")

    monkeypatch.setattr(Decoders, "load_weights", staticmethod(fail))

    with pytest.raises(ConfigurationError, match="loading it failed with AttributeError: no such layer"):
        load(DEMO)
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "generation_config.json cannot be read"),
        ("[]", "generation_config.json is no JSON object"),
        ('{"temperature": "hot"}', "generation_config.json: temperature must be 0 or more, got 'hot'"),
        ('{"do_sample": true, "top_p": 7}', r"generation_config.json: top_p must be in \(0, 1\], got 7"),
    ],
)
def test_a_generation_config_that_no_request_could_follow_is_refused(
    tmp_path: Path, content: str, reason: str
) -> None:
    directory = save_model(tmp_path / "model")
    (directory / "generation_config.json").write_text(content)

    with pytest.raises(ConfigurationError, match=reason):
        load(directory)


@pytest.mark.parametrize("may_download", [True, False])
def test_a_path_without_a_model_is_said_not_to_exist(may_download: bool) -> None:
    with pytest.raises(ConfigurationError, match="cannot be served: /no/such/model does not exist, and"):
        load("/no/such/model", model_downloads=may_download)


def test_a_draft_model_is_loaded_beside_its_model() -> None:
    with started(DEMO, engine_speculation="auto", engine_draft_model=str(DEMO)) as models:
        assert texts(chat(models, "48213").wait()) == ["forty-eight thousand two hundred thirteen"]
        stats = models.get(DEMO_MODEL_ID)._engine.stats()  # type: ignore[attr-defined]

    assert stats.num_accepted_tokens > 0


def test_each_of_n_answers_is_as_without_a_draft_model() -> None:
    answers: list[Any] = []
    drawn: dict[str, Any] = {"n": 3, "temperature": 2.0, "seed": 5, "max_tokens": 16}
    with_model = {"engine_speculation": "auto", "engine_draft_model": str(DEMO)}
    for settings in (dict[str, Any](), with_model):
        with started(DEMO, **settings) as models:
            answers.append(chat(models, "48213", **drawn).wait().body)
            stats = models.get(DEMO_MODEL_ID)._engine.stats()  # type: ignore[attr-defined]

    assert answers[0] == answers[1]
    assert len({choice["message"]["content"] for choice in answers[0]["choices"]}) > 1
    assert stats.num_accepted_tokens > 0


@pytest.mark.parametrize(
    ("speculation", "draft", "reason"),
    [
        ("off", DEMO, "ENGINE_SPECULATION must be auto with a NIGHTSHIFT_ENGINE_DRAFT_MODEL"),
        ("auto", "/no/such/model", "/no/such/model does not exist, and is no hub id"),
        ("auto", SHIPPED[1], "ENGINE_DRAFT_MODEL '.*' cannot be used: .* it embeds text"),
    ],
)
def test_a_draft_model_that_cannot_be_used_is_named(speculation: str, draft: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        load(DEMO, engine_speculation=speculation, engine_draft_model=str(draft))


def test_an_unloaded_model_leaves_nothing_behind() -> None:
    """Its weights and KV are what a swap is for."""
    for lazy in lazy_models(*SHIPPED):
        server = lazy.load()
        server.start()
        engine = weakref.ref(server._engine)  # type: ignore[attr-defined]
        assert server.context_length > 0

        server.stop()
        del server
        memory.collect_and_give_back()

        assert engine() is None, f"{lazy.model.id} is still held by {gc.get_referrers(engine())}"


def test_what_would_not_fit_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Decoders, Encoders):
        monkeypatch.setattr(kind, "load", lambda *_: pytest.fail("a model was loaded"))

    said = r"do not fit .* model \(0\.08 GiB of weights .* of 0\.09 GiB"
    with pytest.raises(ConfigurationError, match=said):
        load(*SHIPPED, device_memory_bytes=10**8)
    with pytest.raises(ConfigurationError, match=r"'model' does not fit .* of 0\.09 GiB are left"):
        lazy_models(MINILM, device_memory_bytes=10**8)


def test_a_lazy_model_is_checked_at_start_as_far_as_its_files_tell(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "whisper", "architectures": ["WhisperModel"]}')

    with pytest.raises(ConfigurationError, match="cannot be served"):
        lazy_models(tmp_path)


def lazy_models(*directories: Path, **settings: Any) -> list[LazyModel]:
    given = {"lazy_models": tuple(map(str, directories)), "engine_num_kv_blocks": 64, **settings}
    opened = loading.open_models(SETTINGS.model_copy(update=given), lambda _: None)
    assert all(isinstance(model, LazyModel) for model in opened)
    return [*opened]  # type: ignore[list-item]


def embedder(directory: Path, **sizes: Any) -> Path:
    config = BertConfig(vocab_size=64, max_position_embeddings=64, **(SIZES | sizes))
    return save_checkpoint(directory, BertModel(config))


def gone(directory: Path) -> None:
    shutil.rmtree(directory)


def of_another_kind(directory: Path) -> None:
    gone(directory)
    save_model(directory)


def larger(directory: Path) -> None:
    gone(directory)
    embedder(directory, num_hidden_layers=9)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (gone, "does not exist"),
        (of_another_kind, "its files are of a model that generates text"),
        (larger, r"its files need more memory, \d+ bytes in place of \d+; start the worker again"),
    ],
)
def test_a_lazy_model_whose_files_changed_since_the_start_is_refused(
    tmp_path: Path, change: Callable[[Path], None], reason: str
) -> None:
    """Memory was set aside for what lay there."""
    [model] = lazy_models(embedder(tmp_path / "embedder"))

    change(tmp_path / "embedder")

    with pytest.raises(ConfigurationError, match=f"embedder' cannot be served: .*{reason}"):
        model.load()


def test_a_relative_directory_that_goes_away_is_never_asked_for_at_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    embedder(Path("models/embedder"))
    [model] = lazy_models(Path("models/embedder"))

    gone(Path("models/embedder"))

    with pytest.raises(ConfigurationError, match=r"does not exist, and it is no hub id either"):
        model.load()


# -- the hub

OLD, NEW = "1" * 40, "2" * 40
REVISIONS = {"main": NEW, "v1": OLD, OLD: OLD, NEW: NEW}


PROGRAM = """
import sys
from nightshift.errors import ConfigurationError
from workers.serving.hub import directory_of
for reference in sys.argv[2:]:
    try:
        print(directory_of(reference, may_download=sys.argv[1] == "online"))
    except ConfigurationError as error:
        print(*error.message.splitlines())
"""


class Hub:
    """`org/tiny` with two commits: the demo model's files, and in the first a pickle and another one."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.url = ""
        files = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}
        self.commits = {NEW: files, OLD: files | {"old.json": b"{}", "pytorch_model.bin": b"pickle"}}

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers, as the hub's API has them."""
        self.requests.append(path)
        parts = path.partition("?")[0].strip("/").split("/")
        match parts:
            case ["api", "models", "org", "tiny", "revision", revision] if revision in REVISIONS:
                commit = REVISIONS[revision]
                siblings = [{"rfilename": name} for name in self.commits[commit]]
                body = json.dumps({"id": "org/tiny", "sha": commit, "siblings": siblings}).encode()
                return 200, body, {"Content-Type": "application/json"}
            case ["api", "models", "org", "tiny", "tree", commit] if commit in self.commits:
                listed = [
                    {"type": "file", "path": name, "size": len(body), "oid": sha256(body).hexdigest()}
                    for name, body in self.commits[commit].items()
                ]
                return 200, json.dumps(listed).encode(), {"Content-Type": "application/json"}
            case ["org", "tiny", "resolve", commit, name] if name in self.commits.get(commit, {}):
                body = self.commits[commit][name]
                return 200, body, {"X-Repo-Commit": commit, "ETag": f'"{sha256(body).hexdigest()}"'}
        return 404, b"", {"X-Error-Code": "RevisionNotFound"}


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body, headers = hub.answer(self.path)
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        yield hub
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with serving(Hub()) as hub:
        yield hub


def directories_of(hub: Hub, home: Path, *references: str, online: bool) -> list[str]:
    """Directories or refusals. In a process of its own: the hub's client reads its settings at import."""
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0" if online else "1"}
    command = [sys.executable, "-c", PROGRAM, "online" if online else "offline", *references]
    return subprocess.run(
        command, env=os.environ | settings, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_a_pinned_revision_is_downloaded_once_without_pickles_and_then_found_offline(
    hub: Hub, tmp_path: Path
) -> None:
    pinned, other = f"org/tiny@{OLD}", f"org/tiny@{NEW}"
    directory, unknown = directories_of(hub, tmp_path, pinned, "org/tiny@v9", online=True)
    assert Path(directory).name == OLD
    names = {path.name for path in Path(directory).iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "old.json"} <= names
    assert "pytorch_model.bin" not in names
    assert "org/tiny@v9 cannot be downloaded" in unknown

    num_requests = len(hub.requests)
    again, refused = directories_of(hub, tmp_path, pinned, other, online=False)
    assert again == directory
    assert "set NIGHTSHIFT_MODEL_DOWNLOADS=true" in refused
    assert len(hub.requests) == num_requests, "offline, the hub is not asked"
