"""The list of modules is read from its own directory alone, and what is wrong in it is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nightshift_engine.checkpoint.files import MODULES_MAX, Module, read_modules
from nightshift_engine.errors import ModelLoadFailed

POOLING = "sentence_transformers.models.Pooling"


def test_modules_have_types_and_folders(tmp_path: Path) -> None:
    assert read_modules(tmp_path, "m") is None

    listed = [{"idx": 0, "type": "t.Transformer", "path": ""}, {"type": POOLING, "path": "1_Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(listed))

    assert read_modules(tmp_path, "m") == [
        Module("t.Transformer", tmp_path),
        Module(POOLING, tmp_path / "1_Pooling"),
    ]
    assert [module.kind for module in read_modules(tmp_path, "m") or ()] == ["Transformer", "Pooling"]


@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        ("{", "Expecting property name"),
        ("[" * 10_000, "recursion"),
        ("\udcff", "utf-8"),
        ({}, "it is no list of up to"),
        (None, "it is no list of up to"),
        ([{"type": POOLING, "path": "p"}] * (MODULES_MAX + 1), f"it is no list of up to {MODULES_MAX}"),
        ([7], "module 0 is no object"),
        ([{"path": ""}], "module 0 has type None, which is no text"),
        ([{"type": POOLING, "path": 7}], "module 0 has path 7, which is no text"),
        ([{"type": POOLING, "path": "../other"}], r"module 0 has path '\.\./other', which is outside"),
        ([{"type": POOLING, "path": "a/../../b"}], "module 0 has path .* which is outside its directory"),
        ([{"type": POOLING, "path": "/etc"}], "module 0 has path '/etc', which is outside its directory"),
        ([{"type": POOLING, "path": "a\0b"}], "module 0 has path .* which is outside its directory"),
    ],
    ids=lambda value: str(value)[:40].replace("\0", ""),
)
def test_a_list_that_is_none_is_refused_with_the_place(tmp_path: Path, listed: Any, reason: str) -> None:
    text = listed if isinstance(listed, str) else json.dumps(listed)
    (tmp_path / "modules.json").write_bytes(text.encode(errors="surrogateescape"))

    with pytest.raises(ModelLoadFailed, match=rf"modules\.json cannot be read: .*{reason}"):
        read_modules(tmp_path, "m")
