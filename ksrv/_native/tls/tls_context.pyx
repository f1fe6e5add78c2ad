"""TLS of the native servers: OpenSSL, and the settings shared by a server's connections."""

cimport cython
from libcpp.string cimport string

from native.tls.openssl cimport load_openssl, openssl
from native.tls.tls_context cimport TlsRules

if not cython.compiled:
    from collections.abc import Sequence


def why_no_tls() -> str | None:
    """Return why the native servers have no TLS here, or None if they have it."""
    cdef const char *why = load_openssl()
    return None if why == NULL else (<bytes>why).decode()


def openssl_version() -> str:
    """Return the name and version of the OpenSSL library in use.

    Raises:
        RuntimeError: OpenSSL is missing.
    """
    why = why_no_tls()
    if why is not None:
        raise RuntimeError(f"TLS: {why}")
    return (<bytes>openssl.OpenSSL_version(0)).decode()


cdef class TicketKeys:
    """The keys of session tickets, renewed every hour and shared by all processes forked later.

    Raises:
        RuntimeError: OpenSSL is missing.
        MemoryError: No shared memory is available.
    """

    def __cinit__(self):
        openssl_version()
        self.keys = CTicketKeys.make()
        if self.keys.get() == NULL:
            raise MemoryError("TLS: no shared memory for the keys of session tickets")


cdef class TlsContext:
    """A certificate, its key, and the rules for connections that use them.

    Args:
        chain: A PEM file with the server's certificate and its intermediate certificates.
        key: A PEM file with the certificate's key, without a password.
        authority: A PEM file with the authorities that sign clients' certificates.
        asks: Whether to ask clients for a certificate.
        demands: Whether to refuse clients without a certificate.
        verify_flags: OpenSSL's flags for verifying clients' certificates.
        least_version: The lowest version of TLS, as in `ssl.TLSVersion`. 0 for OpenSSL's default.
        most_version: The highest version of TLS, likewise.
        ciphers: The ciphers of TLS 1.2 in OpenSSL's notation. "" for OpenSSL's default.
        protocols: The protocols that ALPN may choose, in order of preference. Empty for no ALPN.
        ticket_keys: Sessions resume in every context with the same keys. None for keys that no
            other context has.

    Raises:
        ValueError: A file or a rule cannot be used.
        RuntimeError: OpenSSL is missing.
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
        self.context.reset(made)
        if not made.set_up(rules, &reason):
            raise ValueError(f"TLS: {reason.decode('utf-8', 'replace')}")
