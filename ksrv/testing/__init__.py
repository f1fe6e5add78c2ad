"""Tests of models and handlers: a real server of one's own on free ports."""

from ksrv.testing.server import Server, ServerFailed

__all__ = ["Server", "ServerFailed"]
