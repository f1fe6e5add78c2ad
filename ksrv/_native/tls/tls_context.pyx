"""TLS of the native servers: the system's OpenSSL, and what the connections of a server share."""

cimport cython

if not cython.compiled:
    from collections.abc import Sequence


def why_no_tls() -> str | None:
    """Say why the native servers have no TLS here; None where they have it."""
    cdef const char *why = load_openssl()
    return None if why == NULL else (<bytes>why).decode()


def openssl_version() -> str:
    """Return the name and the version of the library that the native servers use.

    Raises:
        RuntimeError: There is none.
    """
    why = why_no_tls()
    if why is not None:
        raise RuntimeError(f"TLS: {why}")
    return (<bytes>openssl.OpenSSL_version(0)).decode()


cdef class TicketKeys:
    """The keys of session tickets, renewed every hour and the same in all processes forked behind.

    Raises:
        RuntimeError: There is no OpenSSL.
        MemoryError: There is no memory that processes can share.
    """

    def __cinit__(self):
        openssl_version()
        self.keys = CTicketKeys.make()
        if self.keys.get() == NULL:
            raise MemoryError("TLS: no shared memory for the keys of session tickets")


cdef class TlsContext:
    """A certificate, its key and the rules of the connections that are made with them.

    Args:
        chain: A PEM file with the server's certificate, and those up to its authority.
        key: A PEM file with its key, without a password.
        authority: A PEM file with the authorities of clients' certificates.
        asks: Whether clients are asked for a certificate.
        demands: Whether a client without one is refused.
        verify_flags: OpenSSL's flags for the look at clients' certificates.
        least_version: The least version of TLS, as `ssl.TLSVersion`; 0 is OpenSSL's own.
        ciphers: Those of TLS 1.2, in OpenSSL's notation; "" are OpenSSL's own.
        protocols: What may be chosen by ALPN, the best one first; none leaves ALPN out.
        ticket_keys: Sessions resume in every context that has the same ones; None makes keys that
            no other context has.

    Raises:
        ValueError: A file or a rule cannot be used.
        RuntimeError: There is no OpenSSL.
    """

    def __cinit__(
        self, str chain not None, str key not None, *, str authority=None, bint asks=False,
        bint demands=False, unsigned long verify_flags=0, long least_version=0,
        long most_version=0, str ciphers="", protocols: Sequence[str] = (),
        TicketKeys ticket_keys=None
    ):
        cdef TlsRules rules
        cdef string reason
        cdef CTlsContext *made
        openssl_version()
        rules.chain = chain.encode()
        rules.key = key.encode()
        rules.authority = (authority or "").encode()
        rules.asks = asks or demands
        rules.demands = demands
        rules.verify_flags = verify_flags
        rules.least_version = least_version
        rules.most_version = most_version
        rules.ciphers = ciphers.encode()
        for protocol in protocols:
            name = (<str?>protocol).encode("ascii")
            if not 0 < len(name) < 256:
                raise ValueError(f"protocol {protocol!r} has no length from 1 to 255")
            rules.protocols.push_back(name)
        if ticket_keys is not None:
            rules.ticket_keys = ticket_keys.keys
        made = new CTlsContext()
        self.context = shared_ptr[const_tls](<const_tls *>made)
        if not made.set_up(rules, &reason):
            raise ValueError(f"TLS: {reason.decode('utf-8', 'replace')}")
