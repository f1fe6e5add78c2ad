from typing import final

TAKEN: int
WAIT: int
NO_ROOM: int
TOO_LARGE: int

@final
class DecodeMemory:
    def __init__(self, of_process: bool = False) -> None: ...
    @property
    def waiting(self) -> int: ...
    def take(self, nbytes: int) -> int: ...
    def give_back(self, nbytes: int) -> None: ...
