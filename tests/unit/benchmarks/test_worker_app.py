"""The worker's pools for benchmarks have the models that they say."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.records import FOLDER, calls_ended
from benchmarks.service.worker_app import load_recorded
from nightshift.settings import WorkerSettings
from tests.unit.workers.engine.encoders.tiny_encoders import save_checkpoint, tiny_bert
from workers.serving.embedding_server import EmbeddingServer
from workers.serving.kinds import encoder


def test_a_recording_worker_writes_down_what_its_encoder_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = tmp_path / "records"
    records.mkdir()
    monkeypatch.setenv(FOLDER, str(records))
    monkeypatch.setattr(encoder, "EncoderModel", encoder.EncoderModel)  # put back at the end
    model = save_checkpoint(tmp_path / "model", tiny_bert())
    settings = WorkerSettings(models=(str(model),), device="cpu", dtype="float32")

    [server] = load_recorded(settings, lambda error: None)

    assert isinstance(server, EmbeddingServer)
    server._encoder.encode([[5, 6, 7]])
    assert calls_ended(records)[-1].rows == 1


def test_a_worker_whose_encoder_answers_zeros_has_no_torch_in_its_memory() -> None:
    """Its figures are of what rows take."""
    program = (
        "import sys\n"
        "from benchmarks.service.worker_app import load_zeros\n"
        "from nightshift.settings import WorkerSettings\n"
        "import workers.runtime\n"
        "load_zeros(WorkerSettings(), print)\n"
        "print(*{'torch', 'transformers'} & sys.modules.keys())\n"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
