"""How a folder appears: with sources of this process, and without a network."""

import errno
import hashlib
import json
from pathlib import Path

import pytest

from ksrv.pull.folder import differences, lock_of, pull_into
from ksrv.pull.source import MOST_FILES, PullError, RemoteFile, check_names, redacted
from tests.support.tree import tree


class Memory:
    """A source whose files are in memory.

    Args:
        sizes: Sizes in the list of files that are not the real sizes.
        fails_at: The name of a file at which the disk is full.
    """

    def __init__(self, contents, digests=(), sizes=(), fails_at=None, revision="1"):
        self.uri, self.revision = "test:cats", revision
        self._contents, self._fails_at = contents, fails_at
        self.files = [
            RemoteFile(name, dict(sizes).get(name, len(data)), dict(digests).get(name, ""))
            for name, data in contents.items()
        ]

    def fetch(self, tree, arrived):
        for name, data in self._contents.items():
            if name == self._fails_at:
                raise OSError(errno.ENOSPC, "No space left on device", name)
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes(data)
            arrived(name, len(data))


CONTENTS = {"a": b"1", "sub/b": b"22"}


def quiet(arrived, total):
    """Show no progress."""


GIT = "git:56a6051ca2b02b04ef92d5150c9ef600403cb1de"  # of `printf 1 | git hash-object --stdin`


@pytest.mark.parametrize("existing", ["nothing", "empty folder"])
def test_folder_appears_whole(tmp_path, existing):
    folder, shown = tmp_path / "models/cats", []
    if existing == "empty folder":
        folder.mkdir(parents=True)
    pull_into(folder, Memory(CONTENTS), lambda *counts: shown.append(counts))
    assert tree(folder) == CONTENTS
    assert shown == [(1, 3), (3, 3)]
    assert {path.name for path in folder.parent.iterdir()} == {"cats", ".cats.pull.lock"}
    assert differences(folder, "test:cats") == []


def test_failed_pull_leaves_no_folder_and_the_next_goes_on(tmp_path):
    folder = tmp_path / "cats"
    with pytest.raises(OSError, match="No space left"):
        pull_into(folder, Memory(CONTENTS, fails_at="sub/b"), quiet)
    assert not folder.exists() and not lock_of(folder).exists()
    pull_into(folder, Memory(CONTENTS), quiet)
    assert tree(folder) == CONTENTS


@pytest.mark.parametrize("at", ["before the lock file", "before the folder"])
def test_pull_that_ends_at_the_last_steps_goes_on(tmp_path, monkeypatch, at):
    folder, method = tmp_path / "cats", {"before the lock file": "replace"}.get(at, "rename")

    def ended(self, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, method, ended)
        with pytest.raises(KeyboardInterrupt):
            pull_into(folder, Memory(CONTENTS), quiet)
    assert not folder.exists()
    pull_into(folder, Memory(CONTENTS), quiet)
    assert tree(folder) == CONTENTS and differences(folder, "test:cats") == []


def test_files_of_another_revision_do_not_remain(tmp_path):
    folder = tmp_path / "cats"
    with pytest.raises(OSError, match="No space left"):
        pull_into(folder, Memory(CONTENTS, fails_at="sub/b"), quiet)
    pull_into(folder, Memory({"c": b"3"}, revision="2"), quiet)
    assert tree(folder) == {"c": b"3"}


def test_strange_files_in_the_staging_folder_do_not_remain(tmp_path):
    folder = tmp_path / "cats"
    with pytest.raises(OSError, match="No space left"):
        pull_into(folder, Memory(CONTENTS, fails_at="sub/b"), quiet)
    [staged] = (tmp_path / ".cats.pull").iterdir()
    (staged / "strange").mkdir()
    (staged / "strange/handler.py").write_text("")
    (staged / "link").symlink_to("/etc")
    pull_into(folder, Memory(CONTENTS), quiet)
    assert tree(folder) == CONTENTS
    assert {path.name for path in folder.iterdir()} == {"a", "sub"}


def test_staging_folder_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".cats.pull").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"\.cats\.pull"):
        pull_into(tmp_path / "cats", Memory(CONTENTS), quiet)
    assert not any((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("kind", ["file", "folder", "dangling link"])
def test_existing_folder_is_left_as_it_is(tmp_path, kind):
    folder = tmp_path / "cats"
    if kind == "file":
        folder.write_text("mine")
    elif kind == "folder":
        folder.mkdir()
        (folder / "mine").touch()
    else:
        folder.symlink_to(tmp_path / "none")
    with pytest.raises(PullError, match="was not pulled"):
        pull_into(folder, Memory(CONTENTS), quiet)
    assert {path.name for path in tmp_path.iterdir()} == {"cats"}


def test_mount_point_is_refused():
    with pytest.raises(PullError, match="folder below it"):
        pull_into(Path("/proc"), Memory(CONTENTS), quiet)


def test_model_larger_than_the_disk_is_refused_at_once(tmp_path):
    source = Memory({"a": b""}, sizes={"a": 1 << 60})
    with pytest.raises(PullError, match="the disk"):
        pull_into(tmp_path / "cats", source, quiet)


@pytest.mark.parametrize(
    "digest", [GIT, "sha256:6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"]
)
def test_digests_of_the_source_are_compared(tmp_path, digest):
    pull_into(tmp_path / "right", Memory(CONTENTS, digests={"a": digest}), quiet)
    wrong = digest[:-1] + "f"
    with pytest.raises(PullError, match=f"'a' has size and digest .*{digest}.*expected .*{wrong}"):
        pull_into(tmp_path / "wrong", Memory(CONTENTS, digests={"a": wrong}), quiet)
    assert not (tmp_path / "wrong").exists()


def test_other_size_than_listed_is_refused(tmp_path):
    with pytest.raises(PullError, match=r"'a' has size and digest \(1, ''\); expected \(2, ''\)"):
        pull_into(tmp_path / "cats", Memory(CONTENTS, sizes={"a": 2}), quiet)


def test_lock_names_what_was_pulled(tmp_path):
    pull_into(tmp_path / "cats", Memory(CONTENTS, revision="abc"), quiet)
    lock = json.loads(lock_of(tmp_path / "cats").read_text())
    assert (lock["uri"], lock["revision"]) == ("test:cats", "abc")
    assert lock["files"]["a"] == f"sha256:{hashlib.sha256(b'1').hexdigest()}"
    assert lock["files"].keys() == CONTENTS.keys()


@pytest.mark.parametrize(
    "names",
    [
        ["/etc/passwd"], ["../a"], ["a/../../b"], ["a//b"], ["a/"], ["."], [""], ["a\\b"],
        ["a\nb"], ["a\x00b"], ["\x1b[2J"], ["\udcff"], ["a", "a"], ["a", "A"], ["a/b", "A"],
        ["a", "a/b/c"], ["a/b/c", "a/b"], ["straße", "STRASSE"],
    ],
)  # fmt: skip
def test_hostile_and_colliding_names_are_refused(names):
    with pytest.raises(PullError):
        check_names([RemoteFile(name, 1) for name in names])


@pytest.mark.parametrize("count", [0, MOST_FILES + 1])
def test_number_of_files_is_bounded(count):
    with pytest.raises(PullError, match="expected 1 to"):
        check_names([RemoteFile(f"f{number}", 1) for number in range(count)])


@pytest.mark.parametrize("name", ["a", "a/b", "ä b.bin", ".hidden", "...", "a..b", "x" * 200])
def test_ordinary_names_are_accepted(name):
    check_names([RemoteFile(name, 1), RemoteFile("other/" + name, 1)])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://h/a?X-Amz-Signature=s", "https://h/a"),
        ("GET https://u:p@h/a?sig=s in 3 ms", "GET https://h/a in 3 ms"),
        ("https://h/a?X-Amz-Signature=s#sha256=12", "https://h/a#sha256=12"),
        ("s3://b/a", "s3://b/a"),
        ("hf://a/b@main", "hf://a/b@main"),
    ],
)
def test_texts_lose_credentials(text, shown):
    assert redacted(text) == shown
