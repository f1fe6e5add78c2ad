import gzip
import io

import pytest

from ksrv._native.memory.memory_budget import MemoryBudget
from ksrv.errors import InvalidRequest, UnsupportedEncoding
from ksrv.server.http.body import BodyReader
from ksrv.server.settings import ServerSettings

MIB = 1024 * 1024


def read(content, **more):
    environ = {"wsgi.input": io.BytesIO(content), "CONTENT_LENGTH": str(len(content))}
    environ["HTTP_CONTENT_ENCODING"] = more.pop("encoding")
    reader = BodyReader(ServerSettings(**more), MemoryBudget(MIB))
    with reader.reserve() as reservation:
        return reader.read(environ, reservation)


def test_inflating_can_be_switched_off():
    with pytest.raises(UnsupportedEncoding, match="identity only"):
        read(gzip.compress(b"x"), encoding="gzip", decompress_requests=False)
    assert bytes(read(b"x", encoding="identity", decompress_requests=False)) == b"x"


def test_an_error_of_the_wsgi_input_is_the_clients_mistake():
    class Broken(io.BytesIO):
        def read(self, size=-1):
            raise OSError("reset")

    environ = {"wsgi.input": Broken(), "CONTENT_LENGTH": "5"}
    budget = MemoryBudget(MIB)
    reader = BodyReader(ServerSettings(), budget)
    with (
        reader.reserve() as reservation,
        pytest.raises(InvalidRequest, match="cannot be read: reset"),
    ):
        reader.read(environ, reservation)
    assert budget.held == 0
