"""The cache of unpacked archives: what is used stays, what nobody uses goes."""

import os
import subprocess
import sys
import time

import pytest

from ksrv.repository.torchserve.archive import open_archive
from ksrv.repository.torchserve.cache import ABANDONED_DAYS, KEPT_DAYS, evict, lock_folder
from tests.unit.repository.torchserve.test_archive import FILES, write_zip

DAY = 24 * 3600


def folder(cache, name, days):
    """Make an entry of the cache that was used some days ago."""
    place = cache / name
    place.mkdir(parents=True)
    (place / "file").write_text("x")
    then = time.time() - days * DAY
    os.utime(place, (then, then))
    return place


def test_old_archives_and_halves_go(tmp_path):
    old = folder(tmp_path, "a" * 64, KEPT_DAYS + 1)
    new = folder(tmp_path, "b" * 64, KEPT_DAYS - 1)
    half = folder(tmp_path, ".unpacking-abc", ABANDONED_DAYS + 1)
    running = folder(tmp_path, ".unpacking-def", 0)
    other = folder(tmp_path, "somebody-elses", 1000)
    evict(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([new, running, other])
    assert not old.exists() and not half.exists()


def test_unpacking_prunes_and_opening_counts_as_use(tmp_path):
    cache = tmp_path / "cache"
    write_zip(tmp_path / "one.mar", FILES)
    place = open_archive(tmp_path / "one.mar", cache)
    old = folder(cache, "a" * 64, KEPT_DAYS + 1)
    assert open_archive(tmp_path / "one.mar", cache) == place
    assert old.exists()  # nothing was unpacked
    long_ago = time.time() - 1000 * DAY
    os.utime(place, (long_ago, long_ago))
    open_archive(tmp_path / "one.mar", cache)
    assert time.time() - place.stat().st_mtime < DAY
    write_zip(tmp_path / "two.mar", [*FILES, ("more", b"x")])
    open_archive(tmp_path / "two.mar", cache)
    assert not old.exists()
    assert place.exists()


def test_archive_that_another_process_uses_stays(tmp_path):
    place = folder(tmp_path, "c" * 64, 0)
    code = (
        "import sys; from pathlib import Path; from ksrv.repository.torchserve.cache import lock_folder\n"
        "assert lock_folder(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout.readline() == b"held\n"
        long_ago = time.time() - 1000 * DAY
        os.utime(place, (long_ago, long_ago))
        evict(tmp_path)
        assert (place / "file").exists()
        user.stdin.close()
        user.wait()
    evict(tmp_path)
    assert not place.exists()


def test_folder_that_was_removed_is_unpacked_again(tmp_path):
    cache = tmp_path / "cache"
    write_zip(tmp_path / "one.mar", FILES)
    place = open_archive(tmp_path / "one.mar", cache)
    place.rename(tmp_path / "gone")
    assert open_archive(tmp_path / "one.mar", cache) == place
    assert place.is_dir()
    assert lock_folder(place)


@pytest.mark.parametrize("days", [KEPT_DAYS + 1])
def test_link_in_the_cache_is_not_followed(tmp_path, days):
    outside = folder(tmp_path, "outside", days)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / ("d" * 64)).symlink_to(outside)
    os.utime(cache / ("d" * 64), (0, 0), follow_symlinks=False)
    evict(cache)
    assert (outside / "file").exists()
