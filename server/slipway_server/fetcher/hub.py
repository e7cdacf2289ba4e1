"""hf://org/name: a repository of a Hugging Face hub, or of what HF_ENDPOINT names."""

import logging
import os
import shutil
from pathlib import Path
from typing import Any

from . import folder
from .folder import FetchError, UnusableError

log = logging.getLogger(__name__)


def download(repository: str, revision: str, dest: Path, max_bytes: int) -> Path:
    """The library resumes and retries; what it brought is compared with the checksums of the hub."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    target = dest / "model"
    try:
        info = HfApi().model_info(repository, revision=revision or None, files_metadata=True)
        files = _wanted(info.siblings or [], f"hf://{repository}", max_bytes)
        log.info("downloading %d files of %s at %s", len(files), repository, info.sha)
        snapshot_download(repository, revision=info.sha, local_dir=target, allow_patterns=list(files))
    except HFValidationError as error:
        raise FetchError(f"hf://{repository} is not a repository name: {error}.") from error
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        reason = str(error).strip().splitlines()[0]
        raise FetchError(f"hf://{repository} cannot be fetched at revision {revision or 'main'}: {reason}") from error
    # The library's bookkeeping for a resumed download; it is no part of the model.
    shutil.rmtree(target / ".cache", ignore_errors=True)
    for name, sha256 in files.items():
        if sha256 and folder.sha256_of(folder.inside(target, name)) != sha256:
            (target / name).unlink()
            raise UnusableError(f"{name} of hf://{repository} does not have the checksum that the hub tells.")
    return target


def _wanted(siblings: list[Any], source: str, max_bytes: int) -> dict[str, str | None]:
    """Names of the files to fetch, with the sha256 of those that the hub keeps as large files."""
    names = [file.rfilename for file in siblings]
    folder.refuse_pickles_only(names, source)
    kept = [file for file in siblings if folder.is_kept(file.rfilename)]
    folder.check_size(sum(file.size or 0 for file in kept), max_bytes, source)
    for file in kept:
        folder.inside(Path(), file.rfilename)
    return {file.rfilename: file.lfs.sha256 if file.lfs else None for file in kept}
