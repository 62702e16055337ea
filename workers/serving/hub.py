"""The place of a model's files: its directory, or the snapshot of its commit that the hub's client keeps."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError

from nightshift.errors import ConfigurationError
from nightshift.fleet.checkpoints import cached_snapshot, hub_id, not_downloaded
from nightshift_engine import HUB_FILES, HUB_FILES_IGNORED


def directory_of(path_or_id: str, *, may_download: bool) -> Path:
    """The files of a directory or hub id (`org/model`, `org/model@revision`), all there.

    Without `may_download` no request is made: what is not in the cache raises ConfigurationError, as does a
    download that fails. A commit that is in the cache is never asked for again.
    """
    if (path := Path(path_or_id)).is_dir():
        return path.absolute()  # a relative one that goes away later would be taken for a hub id
    name, revision = hub_id(path_or_id)
    try:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=HUB_FILES,
                ignore_patterns=HUB_FILES_IGNORED,
                local_files_only=not may_download,
            )
        )
    except HFValidationError as error:  # of a path: it has more than one slash, for one
        there = "is a file, not a directory" if path.exists() else "does not exist"
        raise ConfigurationError(
            f"{path_or_id} {there}, and is no hub id (org/model) either", param="MODELS"
        ) from error
    except (OSError, ValueError) as error:
        if may_download:
            raise ConfigurationError(f"{path_or_id} cannot be downloaded: {error}", param="MODELS") from error
        # A cache filled by other means may have no record of the branch.
        if (snapshot := cached_snapshot(path_or_id)) is not None:
            return snapshot
        raise ConfigurationError(not_downloaded(path_or_id), param="MODELS") from error
