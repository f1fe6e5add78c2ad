"""TLS of the native servers: the system's OpenSSL, and what the connections of a server share."""

TICKET_KEY_BYTES = TICKET_KEYS


def why_no_tls():
    """Say why the native servers have no TLS here; None where they have it."""
    cdef const char *why = load_openssl()
    return None if why == NULL else (<bytes>why).decode()


def openssl_version():
    """Return the name and the version of the library that the native servers use.

    Raises:
        RuntimeError: There is none.
    """
    why = why_no_tls()
    if why is not None:
        raise RuntimeError(f"TLS: {why}")
    return (<bytes>openssl.OpenSSL_version(0)).decode()


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
        most_version: The highest one.
        ciphers: Those of TLS 1.2, in OpenSSL's notation; "" are OpenSSL's own.
        protocols: What may be chosen by ALPN, the best one first; none leaves ALPN out.
        ticket_keys: TICKET_KEY_BYTES random bytes. Sessions resume in every context that has the
            same; b"" makes keys that no other context has.

    Raises:
        ValueError: A file or a rule cannot be used.
        RuntimeError: There is no OpenSSL.
    """

    def __cinit__(
        self, str chain not None, str key not None, *, str authority=None, bint asks=False,
        bint demands=False, unsigned long verify_flags=0, long least_version=0,
        long most_version=0, str ciphers="", protocols=(), bytes ticket_keys=b""
    ):
        cdef TlsRules rules
        cdef string reason
        cdef CTlsContext *made
        openssl_version()
        if len(ticket_keys) not in (0, TICKET_KEY_BYTES):
            raise ValueError(f"ticket_keys has {len(ticket_keys)} bytes, not {TICKET_KEY_BYTES}")
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
        rules.ticket_keys = ticket_keys
        made = new CTlsContext()
        self.context = shared_ptr[const_tls](<const_tls *>made)
        if not made.set_up(rules, &reason):
            raise ValueError(f"TLS: {reason.decode('utf-8', 'replace')}")
