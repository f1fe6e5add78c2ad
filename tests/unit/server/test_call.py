"""`run_infer`: on which thread a request is submitted."""

import threading
from types import SimpleNamespace

import pytest

from ksrv.errors import InvalidRequest
from ksrv.request import InferRequest
from ksrv.server.call import StoredCall, run_infer


class Call(StoredCall):
    def __init__(self, decodes):
        super().__init__()
        self.decodes = decodes
        self.ended = threading.Event()

    def read(self, find):
        validator = SimpleNamespace(decodes=lambda request: self.decodes)
        return InferRequest("m", target=SimpleNamespace(validator=validator))

    def refuse(self, error):
        super().refuse(error)
        self.ended.set()


@pytest.mark.parametrize(
    ("decodes", "waits", "elsewhere"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
def test_request_with_sounds_is_submitted_on_a_thread_that_may_wait(decodes, waits, elsewhere):
    submitted = []

    def submit(request, callback, **options):
        name = threading.current_thread().name.partition("_")[0]
        submitted.append((name, options["waits"]))
        raise InvalidRequest("no sound")

    call = Call(decodes)
    engine = SimpleNamespace(find=lambda *names, **how: None, submit=submit)
    run_infer(call, engine, waits=waits)
    assert call.ended.wait(60)
    expected = ("ksrv-sound", True) if elsewhere else (threading.current_thread().name, waits)
    assert submitted == [expected]
    with pytest.raises(InvalidRequest, match="no sound"):
        call.check()
