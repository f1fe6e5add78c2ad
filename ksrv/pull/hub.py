"""Models of the Hugging Face Hub, read by huggingface_hub."""

import sys
from itertools import islice
from pathlib import Path
from typing import Any

from ksrv.pull.source import MOST_FILES, Arrived, RemoteFile, explained


class HubSource:
    """A repository of the Hub at a commit. huggingface_hub finds the token and the Hub as its other users do.

    Args:
        uri: hf://OWNER/NAME[@REVISION], where the revision is a branch, a tag or a commit.
    """

    def __init__(self, uri: str) -> None:
        from huggingface_hub.hf_api import HfApi, RepoFile

        self.uri = uri
        self._name, _, revision = uri.removeprefix("hf:").removeprefix("//").partition("@")
        with explained(uri, Exception):  # each release has the errors of another HTTP library
            self.revision = str(HfApi().model_info(self._name, revision=revision or None).sha)
            entries = HfApi().list_repo_tree(self._name, revision=self.revision, recursive=True)
            files = (entry for entry in entries if isinstance(entry, RepoFile))
            found = islice(files, MOST_FILES + 1)
            self.files = [RemoteFile(file.path, file.size, _digest(file)) for file in found]

    def fetch(self, tree: Path, arrived: Arrived) -> None:
        """See `Source`. The library shows the progress, and continues what it has in a folder of the tree."""
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import disable_progress_bars

        if not sys.stderr.isatty():
            disable_progress_bars()
        folders = {"local_dir": tree, "cache_dir": tree / ".cache"}
        with explained(self.uri, Exception):
            snapshot_download(self._name, revision=self.revision, **folders)


def _digest(file: Any) -> str:
    return f"sha256:{file.lfs.sha256}" if file.lfs else f"git:{file.blob_id}"
