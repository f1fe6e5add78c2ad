"""Which handlers may stream, according to their code."""

import pytest

from ksrv import BaseHandler, timed
from ksrv.handlers.loading import handler_of
from ksrv.handlers.streaming.streams import may_stream


class Yields(BaseHandler):
    def inference(self, x):
        yield x


class YieldsLater(BaseHandler):
    async def inference(self, x):
        yield x


class Timed(BaseHandler):
    @timed
    def inference(self, x):
        yield x


class Inherits(Yields):
    pass


class HelpedByAMethod(BaseHandler):
    def inference(self, x):
        return [self.tell(one) for one in x]

    @staticmethod
    def tell(one):
        yield one


class HelpedByAnInnerFunction(BaseHandler):
    def inference(self, x):
        def tell():
            yield x

        return tell()


class Sends(BaseHandler):
    def inference(self, x):
        self.context.batch.send({"y": x})
        return {"y": x}


def generates(x):
    yield x


@pytest.mark.parametrize(
    "one",
    [Yields, YieldsLater, Timed, Inherits, HelpedByAMethod, HelpedByAnInnerFunction, Sends, generates],
)  # fmt: skip
def test_streaming_code_is_recognised(one):
    assert may_stream(handler_of(one, "test"))


ALONE = """
from contextlib import contextmanager
from ksrv import BaseHandler

@contextmanager
def held():
    yield

class Whole(BaseHandler):
    def inference(self, x):
        with held():
            return sum(one for one in x)

def whole(x):
    return sum(one for one in x)
"""


def test_code_without_streaming_is_recognised():
    file = {"__name__": "whole"}
    exec(ALONE, file)
    assert not may_stream(handler_of(file["Whole"], "test"))
    assert not may_stream(handler_of(file["whole"], "test"))
    assert not may_stream(BaseHandler())
