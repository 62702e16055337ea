"""One tiny llama on disk, and an engine over it, for the tests that need just any model."""

import os
from pathlib import Path
from typing import Any

import pytest

from nightshift_engine import Engine
from tests.unit.engine.tiny.decoders import make_engine, save_model


def patch_once(interpreter: Any) -> None:
    """Triton's interpreter puts its functions in the place of the language's again for each call within a
    kernel, in a third of its time: here only where they are not in place.
    """
    language, patch = interpreter.tl, interpreter._patch_lang

    def patch_what_is_not(function: Any) -> Any:
        used = [
            value for value in function.__globals__.values() if value is language or value is language.core
        ]
        if any(language.core.is_builtin(module.load) for module in used):
            return patch(function)
        return interpreter._LangPatchScope()

    interpreter._patch_lang = patch_what_is_not


if os.environ.get("TRITON_INTERPRET") == "1":
    try:
        from triton.runtime import interpreter
    except ImportError:  # the tests of its kernels are skipped
        pass
    else:
        patch_once(interpreter)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def engine(llama: Path) -> Engine:
    """Fresh and roomy."""
    return make_engine(llama)
