"""TLS of the native servers, with the OpenSSL of the system."""
