from collections.abc import Iterable
from typing import Final

VERSIONS: Final[tuple[str, ...]]

class ProxyRules:
    def __init__(self, versions: str, trusted: Iterable[str] = ()) -> None: ...
    def trusts(self, address: str) -> bool: ...

def read_proxy_header(
    data: bytes, versions: str = "auto"
) -> str | tuple[int, tuple[str, int] | str | None]: ...
