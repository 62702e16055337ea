"""What an operator sets for a worker reaches the engine, or is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from nightshift.demo import demo_model_path
from nightshift.errors import ConfigurationError
from nightshift.settings import WorkerSettings
from workers.engine.execution.linears.native import NativeLinear
from workers.serving.loading import load_model
from workers.serving.text_server import TextServer

needs_native = pytest.mark.skipif(
    not NativeLinear.can_pack("int8", 4), reason="this machine has no kernel for int8"
)


def made_by(**settings: Any) -> Any:
    server = load_model(str(demo_model_path()), 0, WorkerSettings(device="cpu", **settings), lambda _: None)
    assert isinstance(server, TextServer)
    return server._engine.made_by


@needs_native
def test_precision_and_determinism_are_the_operators_to_set() -> None:
    plain = made_by()
    assert (plain.deterministic, plain.weight_dtype, plain.kv_cache_dtype) == (False, "auto", "float32")
    rounded = made_by(engine_weight_dtype="int8", engine_kv_cache_dtype="int8")
    assert (rounded.weight_dtype, rounded.kv_cache_dtype) == ("int8", "int8")
    assert made_by(deterministic=True).deterministic


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"deterministic": True, "dtype": "bfloat16"}, "dtype"),
        ({"engine_weight_dtype": "int3"}, "weight_dtype"),
        ({"engine_kv_cache_dtype": "int3"}, "kv_cache_dtype"),
        ({"engine_kv_cache_dtype": "fp8"}, "kv_cache_dtype 'fp8' needs triton and a CUDA device"),
    ],
)
def test_what_the_engine_cannot_be_is_said_with_the_settings_name(
    settings: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigurationError, match=field):
        made_by(**settings)
