from collections.abc import Sequence

def openssl_version() -> str: ...
def why_no_tls() -> str | None: ...

class TicketKeys: ...

class TlsContext:
    def __init__(
        self,
        chain: str,
        key: str,
        *,
        authority: str | None = None,
        asks: bool = False,
        demands: bool = False,
        verify_flags: int = 0,
        least_version: int = 0,
        most_version: int = 0,
        ciphers: str = "",
        protocols: Sequence[str] = (),
        ticket_keys: TicketKeys | None = None,
    ) -> None: ...
