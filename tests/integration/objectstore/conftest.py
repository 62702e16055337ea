"""An empty object store of each kind in turn."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from nightshift.objectstore import DirectoryStore, ObjectStore
from nightshift.objectstore.s3 import S3Store
from tests.integration.servers import S3Server


@dataclass(frozen=True)
class Place:
    """A store, and what another process needs to reach it by its URL."""

    store: ObjectStore
    environment: Mapping[str, str] = field(default_factory=dict)


def more(*values: object) -> ParameterSet:
    """A case that `make test-all` adds."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


@pytest.fixture(params=["directory", "moto", more("rclone")])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return _place(request.param, request, tmp_path)


@pytest.fixture(params=["directory", "moto"])
def atomic_store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """A store in which an upload in parts is completed or aborted, never both.

    rclone's server may do both: of a completion and an abort that meet, it may report one and do the other.
    """
    return _place(request.param, request, tmp_path).store


@pytest.fixture
def store(place: Place) -> ObjectStore:
    return place.store


def _place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if kind == "directory":
        return Place(DirectoryStore(tmp_path / "objects"))
    server: S3Server = request.getfixturevalue(f"{kind}_server")
    return Place(S3Store(server.client, server.new_bucket(), "under/a/prefix"), server.environment())
