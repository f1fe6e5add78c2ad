"""Ownership of blocks: leases, views, the pool, and the descriptors of shared blocks."""

import ctypes
import fcntl
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ksrv._native.memory import buffer_pool

ELSEWHERE = [0]

# A sanitizer's malloc has no settings.
HAS_GLIBC_MALLOC = hasattr(ctypes.CDLL(None), "gnu_get_libc_version") and (
    "asan" not in os.environ.get("LD_PRELOAD", "")
)


@pytest.fixture(autouse=True)
def empty_pool():
    gc.collect()
    buffer_pool.configure(cap_bytes=256 << 20, idle_seconds=30)
    buffer_pool.trim()
    ELSEWHERE[0] = buffer_pool.statistics()["leased"]
    yield
    gc.collect()
    assert leased() == 0, "a block leaked"
    buffer_pool.configure(cap_bytes=256 << 20, idle_seconds=30)
    buffer_pool.trim()


def leased() -> int:
    """The number of blocks that this test has leased. Earlier tests of the process may still have others."""
    return buffer_pool.statistics()["leased"] - ELSEWHERE[0]


def test_recycled_block_exports_only_the_leased_bytes():
    old = buffer_pool.lease(50_000)
    memoryview(old)[:] = b"s" * 50_000
    address = old.address
    del old
    block = buffer_pool.lease(10)
    assert block.address == address
    assert memoryview(block).nbytes == 10
    with pytest.raises(TypeError):
        buffer_pool.array(block, "u1", (11,))
    with pytest.raises(TypeError):
        buffer_pool.array(block, "<f4", (2,), offset=4)


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="not -1"):
        buffer_pool.lease(-1)
    for nbytes in (2**39 + 1, 2**59, 2**62, 2**64, 2**70):
        with pytest.raises(MemoryError, match=str(nbytes)):
            buffer_pool.lease(nbytes)
    assert leased() == 0


def test_heap_and_shared_blocks_are_pooled_separately():
    block = buffer_pool.lease(4096)
    del block
    shared = buffer_pool.lease(4096, memfd=True)
    assert shared.fd >= 0
    number = shared.fd
    del shared
    assert buffer_pool.lease(4096).fd == -1
    assert buffer_pool.lease(4096, memfd=True).fd == number


def test_the_pool_keeps_to_its_cap_and_drops_the_oldest():
    buffer_pool.configure(cap_bytes=10_000)
    blocks = [buffer_pool.lease(4096) for _ in range(4)]
    newest = blocks[-1].address
    while blocks:
        del blocks[0]
    statistics = buffer_pool.statistics()
    assert statistics["pooled_bytes"] <= statistics["cap"] == 10_000
    assert statistics["pooled"] == 2
    assert buffer_pool.lease(4096).address == newest
    buffer_pool.configure(cap_bytes=0)
    assert buffer_pool.statistics()["pooled"] == 0
    block = buffer_pool.lease(100)
    del block
    assert buffer_pool.statistics()["pooled"] == 0


def test_the_pool_holds_a_bounded_number_of_blocks():
    blocks = [buffer_pool.lease(64) for _ in range(300)]
    del blocks
    assert buffer_pool.statistics()["pooled"] <= 128


def test_torch_writes_in_place_and_keeps_the_block():
    block = buffer_pool.lease(16)
    tensor = torch.from_numpy(buffer_pool.array(block, "<f4", (4,)))
    del block
    tensor.fill_(2).add_(1)
    assert leased() == 1
    other = torch.from_numpy(buffer_pool.array(buffer_pool.lease(16), "<f4", (4,)))
    other.zero_()
    assert tensor.tolist() == [3, 3, 3, 3]
    del tensor, other
    gc.collect()
    assert leased() == 0


def test_shared_blocks_are_sealed_and_closed_on_exec():
    block = buffer_pool.lease(5000, memfd=True)
    assert fcntl.fcntl(block.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    assert fcntl.fcntl(block.fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    with pytest.raises(PermissionError):
        os.ftruncate(block.fd, 10)


def test_an_adopted_block_shows_the_senders_bytes():
    block = buffer_pool.lease(5000, memfd=True)
    memoryview(block)[:5] = b"hello"
    received = buffer_pool.adopt_fd(os.dup(block.fd), 5000)
    assert bytes(memoryview(received)[:5]) == b"hello" and len(received) == 5000
    number = received.fd
    del received
    with pytest.raises(OSError):
        os.fstat(number)
    assert buffer_pool.statistics()["pooled"] == 0


def test_writes_to_an_adopted_block_are_private():
    block = buffer_pool.lease(5000, memfd=True)
    memoryview(block)[:5] = b"hello"
    received = buffer_pool.adopt_fd(os.dup(block.fd), 5000)
    memoryview(received)[:5] = b"world"
    assert bytes(memoryview(block)[:5]) == b"hello"
    assert not received.pin()


def test_only_the_announced_bytes_of_a_sparse_file_are_mapped():
    sparse = os.memfd_create("sparse", os.MFD_ALLOW_SEALING)
    os.ftruncate(sparse, 1 << 30)
    fcntl.fcntl(sparse, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    before = buffer_pool.statistics()["leased_bytes"]
    block = buffer_pool.adopt_fd(sparse, 5000)
    assert (len(block), block.capacity) == (5000, 8192)
    assert buffer_pool.statistics()["leased_bytes"] - before == 8192
    lines = Path("/proc/self/maps").read_text().splitlines()
    [line] = [line for line in lines if "memfd:sparse" in line]
    first, last = (int(address, 16) for address in line.split()[0].split("-"))
    assert last - first == 8192


def test_unsealed_descriptor_is_refused(tmp_path):
    plain = os.memfd_create("plain", os.MFD_ALLOW_SEALING)
    os.ftruncate(plain, 4096)
    with pytest.raises(ValueError, match="sealed"):
        buffer_pool.adopt_fd(plain, 4096)
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, 4096)
    with pytest.raises(ValueError, match="sealed"):
        buffer_pool.adopt_fd(file, 4096)
    block = buffer_pool.lease(4096, memfd=True)
    for nbytes in (0, 4097, 2**40, 2**63):
        with pytest.raises(ValueError, match="shorter"):
            buffer_pool.adopt_fd(block.fd, nbytes)
    assert os.fstat(block.fd).st_size == 4096
    os.close(plain)
    os.close(file)
    with pytest.raises(OSError):
        buffer_pool.adopt_fd(plain, 4096)


def test_block_of_huge_pages_is_refused():
    try:
        huge = os.memfd_create("huge", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    except OSError:
        pytest.skip("this system has no huge pages")
    os.ftruncate(huge, 2 << 20)
    fcntl.fcntl(huge, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with pytest.raises(ValueError, match="ordinary pages"):
        buffer_pool.adopt_fd(huge, 4096)
    os.close(huge)


def test_a_fork_shares_no_pooled_descriptor():
    script = """
import os
from ksrv._native.memory import buffer_pool
held, pooled = buffer_pool.lease(4096, memfd=True), buffer_pool.lease(4096, memfd=True)
memoryview(held)[:] = b"h" * 4096
memoryview(pooled)[:] = b"p" * 4096
number = pooled.fd
del pooled
heap = buffer_pool.lease(4096); del heap
assert buffer_pool.statistics()["pooled"] == 2
pid = os.fork()
if pid == 0:
    ok = buffer_pool.statistics()["pooled"] == 1
    mine = buffer_pool.lease(4096, memfd=True)
    memoryview(mine)[:] = b"c" * 4096
    del held
    again = buffer_pool.lease(4096, memfd=True)
    memoryview(again)[:] = b"c" * 4096
    raise SystemExit(0 if ok else 1)
assert os.waitpid(pid, 0)[1] == 0
assert bytes(held) == b"h" * 4096
back = buffer_pool.lease(4096, memfd=True)
assert back.fd == number and bytes(back) == b"p" * 4096
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.skipif(not HAS_GLIBC_MALLOC, reason="needs glibc's malloc")
@pytest.mark.parametrize("tuned", [False, True])
def test_threads_of_a_tuned_process_share_heaps(tuned):
    script = """
import ctypes, os, sys, threading
from ksrv._native.memory import buffer_pool
if sys.argv[1] == "True":
    buffer_pool.tune_malloc()
ready = threading.Barrier(24)
def take():
    ready.wait()
    held = bytearray(100_000)
    ready.wait()
threads = [threading.Thread(target=take) for _ in range(24)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc = ctypes.CDLL(None)
libc.open_memstream.restype = ctypes.c_void_p
text, size = ctypes.c_char_p(), ctypes.c_size_t()
stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
libc.malloc_info(0, stream)
libc.fclose(stream)
print(text.value.count(b"<heap nr="))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tuned)], check=True, timeout=60, capture_output=True
    )
    cores = len(os.sched_getaffinity(0))
    heaps = int(done.stdout)
    assert heaps <= max(2, cores // 2) if tuned else heaps > max(2, cores // 2)
