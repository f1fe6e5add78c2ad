"""The server of the integration tests, for the tests of dialects that talk to it."""

from tests.integration.conftest import repository, server

__all__ = ["repository", "server"]
