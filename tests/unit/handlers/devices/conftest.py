"""A fake device instead of the handlers' real devices."""

import pytest

from tests.support.devices import fake_device as support


@pytest.fixture
def fake_devices(monkeypatch):
    """The fake devices of the handlers that a test loads."""
    from ksrv._native.memory import buffer_pool
    from ksrv.handlers import handler_context

    buffer_pool.trim()
    monkeypatch.setattr(support.FakeDevice, "made", [])
    monkeypatch.setattr(support.FakeDevice, "waited_by_handlers", [])
    monkeypatch.setattr(handler_context, "open_device", support.FakeDevice)
    support.PINS.use()
    yield support.FakeDevice.made
    buffer_pool.trim()
    buffer_pool.use_pinning(0, 0)
