"""Blocks of memory that two processes share, and who may write to them when.

Each side makes the blocks that it writes (`OwnBlocks`) and maps those of the other (`PeerBlocks`).
A block's descriptor travels once, with the first message that refers to it; later messages name it
by a number that is never used again. A block is leased anew only when nothing here refers to it and
the other side has said that nothing there does: a handler may keep its inputs for ever, a client may
read its answer slowly, and neither will see another request's bytes.

Whether something refers to a block is asked of the interpreter: every array and memoryview over a
block holds a reference to it, and native code that reads from it without the GIL holds one to its
memory. A block that the other side does not give back is disowned: this side unmaps it, and it
lives for as long as it is used there.
"""

import fcntl
import os
import sys
import threading
from collections.abc import Collection, Iterable

import numpy as np

from ksrv._native import arena
from ksrv._native.arena import Block
from ksrv.engine.executors.channel import MESSAGE_DESCRIPTORS
from ksrv.request import Array

LENT_BLOCKS = 16
"""Blocks that the other side may hold before the oldest is disowned."""

IDLE_BLOCKS = 8
IDLE_BYTES = 128 * 1024 * 1024
PEER_BLOCKS = 1024
_SMALLEST = 64 * 1024


class BlockError(Exception):
    """The other side named a block, or a part of one, that does not exist."""


class _Shared:
    """A block, its number, and nothing else that refers to it."""

    __slots__ = ("announced", "block", "lent", "number")

    def __init__(self, number: int, block: Block) -> None:
        self.number = number
        self.block = block
        self.announced = False
        self.lent = False


def _references(shared: _Shared) -> int:
    return sys.getrefcount(shared.block)


def _unreferenced(shared: _Shared, alone: int) -> bool:
    return _references(shared) <= alone and shared.block.holders == 1


def _count_when_alone() -> int:
    """Return what the interpreter counts for a block that only its record refers to."""
    return _references(_Shared(0, arena.lease(0)))


def _rounded(nbytes: int) -> int:
    """Return the size of the block for `nbytes`: whole pages, in steps of an eighth."""
    if nbytes <= _SMALLEST:
        return _SMALLEST
    step = 1 << max(12, nbytes.bit_length() - 4)
    return -(-nbytes // step) * step


def _make(nbytes: int) -> Block:
    """Return a new block behind a memfd of its own.

    Not a lease of the arena: its pool would hand the memory to others while a handler process
    still has it mapped.
    """
    descriptor = os.memfd_create("ksrv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        # Taken now, so that a lack of memory is an error here and not a SIGBUS in whoever writes.
        os.posix_fallocate(descriptor, 0, nbytes)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        return arena.adopt_fd(descriptor, nbytes)
    except BaseException:
        os.close(descriptor)
        raise


class OwnBlocks:
    """The blocks that this side makes and writes; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alone = _count_when_alone()
        self._by_number: dict[int, _Shared] = {}
        self._by_identity: dict[int, _Shared] = {}
        self._next = 1
        self._retired: list[int] = []

    def lease(self, nbytes: int) -> Block:
        """Return a block of at least `nbytes` that nobody refers to.

        Raises:
            MemoryError: There is no memory for it.
        """
        with self._lock:
            return self._lease(nbytes)

    def _lease(self, nbytes: int) -> Block:
        most = 4 * nbytes + _SMALLEST
        for shared in self._by_number.values():
            if (
                not shared.lent
                and nbytes <= len(shared.block) <= most
                and _unreferenced(shared, self._alone)
            ):
                return shared.block
        self._trim()
        try:
            block = _make(_rounded(nbytes))
        except OSError as error:
            raise MemoryError(f"there is no memory for a block of {nbytes} bytes") from error
        shared = _Shared(self._next, block)
        self._next += 1
        self._by_number[shared.number] = shared
        self._by_identity[id(block)] = shared
        return block

    def number_of(self, block: Block) -> int:
        """Return the number of a block that `lease` returned."""
        return self._by_identity[id(block)].number

    def holding(self, array: Array) -> Block | None:
        """Return the block among these that an array's memory lies in, or None."""
        base: object = array.base
        while isinstance(base, np.ndarray):
            base = base.base
        if isinstance(base, Block) and id(base) in self._by_identity:
            return base
        return None

    def lend(self, numbers: Iterable[int]) -> list[tuple[int, int, int]]:
        """Note that the next message refers to these blocks.

        Returns:
            Number, size and descriptor of each that the other side does not know yet.
        """
        unknown = []
        with self._lock:
            for number in numbers:
                shared = self._by_number.pop(number)
                self._by_number[number] = shared  # the one lent last comes last
                shared.lent = True
                if not shared.announced:
                    shared.announced = True
                    unknown.append((number, len(shared.block), shared.block.fd))
        return unknown

    def may_lend(self, block: Block, unknown: int) -> bool:
        """Tell whether a message that already announces `unknown` blocks can refer to this too."""
        return unknown < MESSAGE_DESCRIPTORS // 2 or self._by_identity[id(block)].announced

    def returned(self, numbers: Iterable[int]) -> None:
        """Note that the other side no longer refers to these blocks.

        Raises:
            BlockError: One of the numbers was never given out.
        """
        with self._lock:
            for number in numbers:
                if not 0 < number < self._next:
                    raise BlockError(f"block {number} was given back, and there is no such block")
                shared = self._by_number.get(number)
                if shared is not None:  # otherwise disowned while the message was on its way
                    shared.lent = False

    def retired(self, referred: Collection[int] = ()) -> list[int]:
        """Disown what is held too long or not needed, for the other side to forget as well.

        Args:
            referred: The blocks that the message about to be sent refers to.

        Returns:
            The numbers of the blocks disowned since the last call.
        """
        with self._lock:
            if len(self._by_number) > IDLE_BLOCKS:
                lent = [shared for shared in self._by_number.values() if shared.lent]
                for shared in lent[: max(0, len(lent) - LENT_BLOCKS)]:
                    if shared.number not in referred:
                        self._disown(shared)
                self._trim()
            numbers, self._retired = self._retired, []
        return numbers

    def _trim(self) -> None:
        """Disown what lies idle beyond the bounds, the longest idle first."""
        idle = [shared for shared in self._by_number.values() if not shared.lent]
        size = sum(len(shared.block) for shared in idle)
        surplus = len(idle) - IDLE_BLOCKS
        for shared in idle:
            if surplus <= 0 and size <= IDLE_BYTES:
                break
            if not _unreferenced(shared, self._alone):
                continue
            surplus -= 1
            size -= len(shared.block)
            self._disown(shared)

    def _disown(self, shared: _Shared) -> None:
        del self._by_number[shared.number]
        del self._by_identity[id(shared.block)]
        if shared.announced:
            self._retired.append(shared.number)

    def clear(self) -> None:
        """Disown every block, because the other side is gone."""
        with self._lock:
            self._by_number.clear()
            self._by_identity.clear()
            self._retired.clear()


class PeerBlocks:
    """The blocks of the other side that are mapped here."""

    def __init__(self) -> None:
        self._alone = _count_when_alone()
        self._by_number: dict[int, _Shared] = {}
        self._held: dict[int, _Shared] = {}

    def adopt(self, number: int, nbytes: int, descriptor: int) -> None:
        """Map a block that was announced; its descriptor is closed if that fails.

        Raises:
            BlockError: The number is taken, there are too many blocks, or this is no block.
        """
        try:
            if number in self._by_number or len(self._by_number) >= PEER_BLOCKS:
                raise BlockError(f"block {number} was announced twice, or is one too many")
            block = arena.adopt_fd(descriptor, nbytes)
        except (BlockError, ValueError, OSError, OverflowError) as error:
            os.close(descriptor)
            raise BlockError(str(error)) from error
        self._by_number[number] = _Shared(number, block)

    def part(self, number: int, offset: int, nbytes: int) -> Block:
        """Return the block `number`, whose bytes from `offset` on a message refers to.

        Raises:
            BlockError: There is no such block, or it ends before.
        """
        shared = self._by_number.get(number)
        if shared is None:
            raise BlockError(f"block {number} was named, and is not known")
        if offset < 0 or nbytes < 0 or offset + nbytes > len(shared.block):
            raise BlockError(
                f"bytes {offset} to {offset + nbytes} of block {number} were named, which has"
                f" {len(shared.block)}"
            )
        self._held[number] = shared
        return shared.block

    def forget(self, numbers: Iterable[int]) -> None:
        """Unmap blocks that the other side has disowned, once nothing refers to them."""
        for number in numbers:
            self._by_number.pop(number, None)
            self._held.pop(number, None)

    def unused(self) -> list[int]:
        """Return the numbers of the blocks to give back: named before, referred to no longer."""
        numbers = [
            number for number, shared in self._held.items() if _unreferenced(shared, self._alone)
        ]
        for number in numbers:
            del self._held[number]
        return numbers

    def clear(self) -> None:
        """Let go of every block; views that exist stay valid."""
        self._by_number.clear()
        self._held.clear()
