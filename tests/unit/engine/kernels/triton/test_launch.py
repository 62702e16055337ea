"""Kernels that Triton has compiled stay on the machine."""

from pathlib import Path

import pytest

pytest.importorskip("triton")

from nightshift_engine.kernels.triton.launch import keep_compiled


def test_compiled_kernels_are_kept_beside_our_own_unless_the_environment_says_where(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_KERNEL_CACHE", str(tmp_path))
    silent: dict[str, str] = {}
    telling = {"TRITON_CACHE_DIR": "/elsewhere"}

    keep_compiled(silent)
    keep_compiled(telling)

    assert silent == {"TRITON_CACHE_DIR": str(tmp_path / "triton")}
    assert telling == {"TRITON_CACHE_DIR": "/elsewhere"}
