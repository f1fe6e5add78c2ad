"""Blocks of memory that two processes share, and which process may write to them when.

Each side makes the blocks that it writes (`ExportedBlocks`) and maps the blocks of the other side
(`ImportedBlocks`). A block's descriptor is sent once, with the first message that refers to the
block. Later messages use a number that is never reused. A block is leased again only after nothing
refers to it here and the other side has returned it as often as messages named it. So a handler may
keep its inputs for ever and a client may read its answer slowly, and neither sees another request's
bytes.

Whether a block is referred to is read from its reference counts: every array and memoryview over a
block holds a reference to the object, and native code that reads the block without the GIL holds a
reference to the memory. A block that the other side does not return is disowned: this side unmaps
it, and the memory lives for as long as it is used there.

The body of a large request is not copied into such a block. Instead the block that received the
body is lent for one message. The other side cannot write to it, keeps it mapped while anything
there refers to it, and returns nothing. This side continues to use the block as if it had not been
lent.
"""

import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ksrv._native.memory import buffer_pool
from ksrv._native.memory.buffer_pool import Block

SMALLEST_BYTES = 64 * 1024
NAMED_BLOCKS = 16
IDLE_BLOCKS = 8
IDLE_BYTES = 128 * 1024 * 1024
PEER_BLOCKS = 1024


class BlockError(Exception):
    """The other side named a block, or part of a block, that does not exist."""


class TooLarge(Exception):
    """A message of this side exceeds the size that the other side accepts."""


class Part(msgspec.Struct):
    """Bytes in a block, as a message names them."""

    block: int
    offset: int
    nbytes: int


class Shared:
    """A block and its number. If unused, it has the only reference to the block.

    Attributes:
        named: How many messages named the block since the other side returned it.
        announced: Whether the other side has mapped the block.
        lent: Whether the block is lent for one message.
    """

    def __init__(self, number: int, block: Block, *, lent: bool = False) -> None:
        self.number = number
        self.block = block
        self.lent = lent
        self.named = 0
        self.announced = False
        self._keeps_pages = False

    @property
    def is_unreferenced(self) -> bool:
        """Whether nothing else refers to the block."""
        return _references(self) == _UNREFERENCED and self.block.holders == 1

    def keeps_pages(self) -> bool:
        """Whether a block that the other side has mapped has all its pages, and cannot lose them."""
        self._keeps_pages = self._keeps_pages or self.block.keep_pages()
        return self._keeps_pages


def _references(shared: Shared) -> int:
    return sys.getrefcount(shared.block)


_UNREFERENCED = _references(Shared(0, object()))  # type: ignore[arg-type]
"""The count for a block to which only its `Shared` refers. It includes the references of `_references` itself."""


def _rounded(nbytes: int) -> int:
    """Return the block size for `nbytes`: whole pages, at most an eighth larger."""
    step = max(4096, 1 << max(nbytes.bit_length() - 4, 0))
    return max(SMALLEST_BYTES, -(-nbytes // step) * step)


class ExportedBlocks:
    """The blocks that this side makes and writes. Thread-safe.

    Attributes:
        most_bytes: The most bytes in the tensors of a message, or in its payload, that the other
            side accepts.
        most_kept: The most bytes in all blocks of this side together that the other side accepts.
    """

    def __init__(self) -> None:
        self.most_bytes = sys.maxsize
        self.most_kept = sys.maxsize
        self._lock = threading.Lock()
        self._shared: list[Shared] = []  # in the order of their last use in a message
        self._retired: list[int] = []
        self._next = 1

    def lease(self, nbytes: int) -> Block:
        """Return a block of at least `nbytes` that nothing else refers to.

        Raises:
            MemoryError: Not enough memory.
        """
        with self._lock:
            for shared in list(self._shared):
                size = len(shared.block)
                fits = nbytes <= size and size // 4 <= nbytes + SMALLEST_BYTES
                if fits and not shared.named and shared.is_unreferenced:
                    if not shared.announced or shared.keeps_pages():
                        return shared.block
                    self._disown(shared)
            self._trim()
            kept = sum(len(shared.block) for shared in self._shared)
            if kept + _rounded(nbytes) > self.most_kept:
                raise MemoryError(
                    f"not enough memory for a block of {nbytes} bytes: the blocks in use "
                    f"have {kept} bytes of at most {self.most_kept}"
                )
            block = buffer_pool.share(_rounded(nbytes))
            self._shared.append(Shared(self._new_number(), block))
            return block

    def check_size(self, nbytes: int) -> None:
        """Raise `TooLarge` if the other side does not accept a message of this size."""
        if nbytes > self.most_bytes:
            raise TooLarge(f"{nbytes} bytes; a message has at most {self.most_bytes}")

    def number_of(self, block: Block) -> int:
        """Return the number of a block that `lease` returned.

        Raises:
            KeyError: The block is unknown, or was disowned.
        """
        with self._lock:
            return self._shared_of(block).number

    def numbers(self) -> list[int]:
        """Return the numbers of the blocks that are kept."""
        with self._lock:
            return [shared.number for shared in self._shared]

    def clear(self) -> None:
        """Disown every block, because the other side is gone. Existing views stay valid."""
        with self._lock:
            self._shared.clear()
            self._retired.clear()

    def containing(self, address: int, nbytes: int) -> Block | None:
        """Return the block that contains the bytes at an address, or None."""
        with self._lock:
            for shared in self._shared:
                start = shared.block.address
                if start <= address and address + nbytes <= start + len(shared.block):
                    return shared.block
        return None

    def lend(self, block: Block) -> Shared | None:
        """Return a body's block with a number for one message, or None if it cannot be lent."""
        if not block.lend():
            return None
        with self._lock:
            return Shared(self._new_number(), block, lent=True)

    def name(self, blocks: Iterable[Block | Shared]) -> list[Shared]:
        """Mark blocks as named by the next message. Return the blocks that it must announce."""
        unknown = []
        with self._lock:
            # A block that is several times in the message is named once.
            for block in {id(block): block for block in blocks}.values():
                if isinstance(block, Shared):  # lent
                    unknown.append(block)
                    continue
                shared = self._shared_of(block)
                if self._shared[-1] is not shared:
                    self._shared.remove(shared)
                    self._shared.append(shared)
                shared.named += 1
                if not shared.announced:
                    shared.announced = True
                    unknown.append(shared)
        return unknown

    def unname(self, blocks: Iterable[Block | Shared], unknown: Iterable[Shared]) -> None:
        """Undo `name`: the message was not sent."""
        with self._lock:
            for block in {id(block): block for block in blocks}.values():
                if not isinstance(block, Shared):
                    self._shared_of(block).named -= 1
            for shared in unknown:
                shared.announced = False

    def take_back(self, numbers: Iterable[int]) -> None:
        """Note blocks that the other side returned, each as often as messages named it."""
        with self._lock:
            by_number = {shared.number: shared for shared in self._shared}
            for number in numbers:
                if not 0 < number < self._next:
                    raise BlockError(f"block {number} was given back, but was never announced")
                shared = by_number.get(number)  # None if it was disowned in the meantime
                if shared is not None:
                    shared.named = max(0, shared.named - 1)

    def retired(self) -> list[int]:
        """Disown idle blocks and blocks that are used too long. Return their numbers."""
        if not self._shared and not self._retired:
            return []
        with self._lock:
            if len(self._shared) > IDLE_BLOCKS:
                named = [shared for shared in self._shared if shared.named]
                for shared in named[: max(0, len(named) - NAMED_BLOCKS)]:
                    # A message that is still being made refers to its blocks, too.
                    if shared.is_unreferenced:
                        self._disown(shared)
                self._trim()
            numbers, self._retired = self._retired, []
        return numbers

    def _new_number(self) -> int:
        number, self._next = self._next, self._next + 1
        return number

    def _shared_of(self, block: Block) -> Shared:
        for shared in self._shared:
            if shared.block is block:
                return shared
        raise KeyError("unknown block")

    def _trim(self) -> None:
        """Disown idle blocks beyond the limits, the longest idle first."""
        idle = [shared for shared in self._shared if not shared.named]
        surplus = len(idle) - IDLE_BLOCKS
        size = sum(len(shared.block) for shared in idle)
        for shared in idle:
            if surplus <= 0 and size <= IDLE_BYTES:
                break
            if shared.is_unreferenced:
                surplus -= 1
                size -= len(shared.block)
                self._disown(shared)

    def _disown(self, shared: Shared) -> None:
        self._shared.remove(shared)
        if shared.announced:
            self._retired.append(shared.number)


class ImportedBlocks:
    """The blocks of the other side that are mapped here. Thread-safe.

    Args:
        borrows: Whether the other side may lend blocks. Only a worker may lend to its handler
            process: the handler's user code must not keep memory of the worker alive.

    Attributes:
        most_bytes: The most bytes in the tensors of a message, or in its payload. The sizes of
            blocks do not limit them, because a block may have pages that were never written, and
            may be named many times.
        most_kept: The most bytes in all mapped blocks together.
    """

    def __init__(self, *, borrows: bool = False) -> None:
        self.most_bytes = sys.maxsize
        self.most_kept = sys.maxsize
        self._borrows = borrows
        self._lock = threading.Lock()
        self._known: dict[int, Shared] = {}
        self._lent: dict[int, Block] = {}  # of messages whose tensors have not been read yet

    def numbers(self) -> list[int]:
        """Return the numbers of the mapped blocks."""
        with self._lock:
            return list(self._known)

    def held(self) -> list[int]:
        """Return the numbers of the blocks that messages named and that were not returned."""
        with self._lock:
            return [shared.number for shared in self._known.values() if shared.named]

    def clear(self) -> None:
        """Release every block. Existing views stay valid."""
        with self._lock:
            self._known.clear()
            self._lent.clear()

    def map(self, number: int, nbytes: int, descriptor: int, *, lent: bool) -> None:
        """Map an announced block. If that fails, the caller keeps the descriptor."""
        with self._lock:
            known: dict[int, Any] = self._lent if lent else self._known
            if lent and not self._borrows:
                raise BlockError(f"block {number} was lent, and nothing may be lent here")
            kept = sum(len(shared.block) for shared in self._known.values())
            if not lent and nbytes + kept > self.most_kept:
                raise BlockError(
                    f"a block of {nbytes} bytes was announced beside {kept} bytes; all of them have at "
                    f"most {self.most_kept}"
                )
            if number in known or len(known) >= PEER_BLOCKS:
                raise BlockError(f"block {number} was announced twice, or is one too many")
            try:
                block = buffer_pool.adopt_fd(descriptor, nbytes, borrowed=lent)
            except (ValueError, OSError, OverflowError) as error:
                raise BlockError(str(error)) from error
            block.close_fd()  # a mapping does not need it, and this process has few descriptors
            known[number] = block if lent else Shared(number, block)

    def read(self, parts: Sequence[Part]) -> list[Block]:
        """Return the block of each part that a message names. A lent block lives as long as its views from now on.

        Raises:
            BlockError: A part is outside of its block, or the block is unknown.
        """
        found: list[Block] = []
        named: dict[int, Shared] = {}
        with self._lock:
            for part in parts:
                shared = self._known.get(part.block)
                block = self._lent.get(part.block) if shared is None else shared.block
                if block is None:
                    raise BlockError(f"block {part.block} was named, and is not known")
                if not 0 <= part.offset <= part.offset + part.nbytes <= len(block):
                    raise BlockError(
                        f"{part.nbytes} bytes from byte {part.offset} on of block {part.block} were named, which has "
                        f"{len(block)}"
                    )
                if shared is not None:
                    named[part.block] = shared
                found.append(block)
            for shared in named.values():
                shared.named += 1
            for part in parts:
                self._lent.pop(part.block, None)
        return found

    def forget(self, numbers: Iterable[int]) -> None:
        """Release blocks that the other side has disowned. Each is unmapped with its last view."""
        with self._lock:
            for number in numbers:
                self._known.pop(number, None)

    def unused(self) -> list[int]:
        """Return the blocks to return, each as often as messages named it: nothing refers to them."""
        numbers: list[int] = []
        if not self._known:
            return numbers
        with self._lock:
            for shared in self._known.values():
                if shared.named and shared.is_unreferenced:
                    numbers += [shared.number] * shared.named
                    shared.named = 0
        return numbers
