"""The folders of unpacked archives: each process has a folder, and folders of ended processes are removed."""

import os
import subprocess
import sys
import time

import pytest

from ksrv.dialects.torchserve.archive import archive
from ksrv.dialects.torchserve.archive.archive import ArchiveError, open_archive
from ksrv.dialects.torchserve.archive.unpack_folders import YOUNG_SECONDS, remove_abandoned
from tests.dialects.torchserve.archive.test_archive import FILES, write_zip

OPEN = (
    "import sys; from pathlib import Path; from ksrv.dialects.torchserve.archive.archive import open_archive\n"
    "print(open_archive(Path(sys.argv[1]), Path(sys.argv[2])), flush=True); sys.stdin.read()"
)


def folder(parent, name, seconds):
    """Make a folder that was written some seconds ago."""
    place = parent / name
    place.mkdir(parents=True)
    (place / "file").write_text("x")
    age(place, seconds)
    return place


def age(place, seconds):
    then = time.time() - seconds
    os.utime(place, (then, then))


def opened_elsewhere(archive, home):
    """Start a process that opens an archive and ends with its standard input."""
    command = [sys.executable, "-c", OPEN, str(archive), str(home)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, home / os.path.basename(process.stdout.readline().strip())


def test_abandoned_folders_are_removed_and_others_stay(tmp_path):
    old = folder(tmp_path, "a" * 64 + "-x1", YOUNG_SECONDS + 5)
    young = folder(tmp_path, "b" * 64 + "-x2", 0)
    other = folder(tmp_path, "somebody-elses", 100_000)
    remove_abandoned(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([young, other])
    assert not old.exists()


def test_folder_of_a_living_process_stays_until_it_ends(tmp_path):
    write_zip(tmp_path / "one.mar", FILES)
    process, place = opened_elsewhere(tmp_path / "one.mar", tmp_path / "home")
    with process:
        age(place, YOUNG_SECONDS + 5)
        remove_abandoned(tmp_path / "home")
        assert place.is_dir()
        process.kill()
    remove_abandoned(tmp_path / "home")
    assert not place.exists()


def test_folder_stays_while_an_archive_is_unpacked_for_longer_than_a_minute(tmp_path, monkeypatch):
    def slow(path, folder, limits):
        age(folder, YOUNG_SECONDS + 5)
        remove_abandoned(tmp_path / "home")
        unpack(path, folder, limits)

    unpack = archive.unpack
    monkeypatch.setattr(archive, "unpack", slow)
    write_zip(tmp_path / "slow.mar", FILES)
    assert (archive.open_archive(tmp_path / "slow.mar", tmp_path / "home") / "MAR-INF").is_dir()


def test_folder_of_a_damaged_archive_is_removed(tmp_path):
    (tmp_path / "broken.mar").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(ArchiveError, match=r"broken\.mar"):
        archive.open_archive(tmp_path / "broken.mar", tmp_path / "home")
    assert list((tmp_path / "home").iterdir()) == []


def test_changes_of_a_handler_reach_no_other_process(tmp_path):
    write_zip(tmp_path / "one.mar", FILES)
    place = open_archive(tmp_path / "one.mar", tmp_path / "home")
    (place / "lin_handler.py").write_text("changed")
    (place / "extracted").mkdir()
    process, elsewhere = opened_elsewhere(tmp_path / "one.mar", tmp_path / "home")
    with process:
        assert elsewhere != place
        assert not (elsewhere / "extracted").exists()
        assert (elsewhere / "lin_handler.py").read_bytes() == dict(FILES)["lin_handler.py"]
        process.kill()


def test_folder_that_was_removed_is_unpacked_again(tmp_path):
    write_zip(tmp_path / "one.mar", FILES)
    place = open_archive(tmp_path / "one.mar", tmp_path / "home")
    place.rename(tmp_path / "gone")
    again = open_archive(tmp_path / "one.mar", tmp_path / "home")
    assert again.is_dir()
    assert again != place


def test_link_among_the_folders_is_not_followed(tmp_path):
    outside = folder(tmp_path, "outside", 1000)
    home = tmp_path / "home"
    home.mkdir()
    link = home / ("d" * 64 + "-x")
    link.symlink_to(outside)
    os.utime(link, (0, 0), follow_symlinks=False)
    remove_abandoned(home)
    assert (outside / "file").exists()
