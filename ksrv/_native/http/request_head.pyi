from collections.abc import Iterable, Sequence
from typing import Final

VERDICTS: Final[tuple[str, ...]]
FAULTS: Final[tuple[str, ...]]
ROUTES: Final[tuple[str, ...]]

class HeadRules:
    def __init__(
        self,
        *,
        body: int,
        json: int | None = None,
        head: int = 16384,
        fields: int = 100,
        request_line: int = 4094,
        field_size: int = 8190,
        chunks: int = 65536,
        longest_head: int = 65536,
        compression: bool = False,
        origins: bool = False,
        scheme_names: Sequence[str] = (),
        mount: str = "",
    ) -> None: ...

class HeadVerdict:
    verdict: str
    fault: str
    route: str
    name: str
    version: str
    length: int
    content_length: int
    json_length: int | None
    question: bool
    close: bool
    http_1_0: bool
    expects_continue: bool
    chunked: bool

def is_host(value: bytes) -> bool: ...
def classify_head(data: bytes, rules: HeadRules, pieces: Iterable[int] = ()) -> HeadVerdict: ...
