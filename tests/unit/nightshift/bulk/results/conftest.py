"""Results are written to a real directory: it is as fast as a fake, and it is the thing itself."""

from pathlib import Path

import pytest

from nightshift.objectstore import DirectoryStore, ObjectStore


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return DirectoryStore(tmp_path)
