"""Headers that a handler sets before its first chunk are in the head of the streamed answer."""

import pytest

from ksrv.testing import Server
from tests.support.models import write_model
from tests.support.streams import TEXT, StreamedResponse, pieces, text_request

MARKED = """
from ksrv import BaseHandler


class Marked(BaseHandler):
    def inference(self, text):
        batch = self.context.batch
        for row in range(batch.rows):
            batch.set_header(row, "X-Model-Run", f"run {row}")
            batch.set_header(row, "Cache-Control", "max-age=5")
            batch.set_header(row, "Content-Length", "7")
        yield [b"one "] * batch.rows
        batch.set_header(0, "X-Late", "no")
        yield [b"two "] * batch.rows
"""

SENT = """
from ksrv import BaseHandler


class Sent(BaseHandler):
    def inference(self, text):
        batch = self.context.batch
        batch.set_header(0, "X-Model-Run", "sent")
        batch.send({"piece": [b"one "]})
        return {"piece": [b"two "]}
"""

LATER = """
from ksrv import BaseHandler


class Later(BaseHandler):
    async def inference(self, text):
        self.context.batch.set_header(0, "X-Model-Run", "later")
        yield [b"one "]
        yield [b"two "]
"""

SILENT = """
from ksrv import BaseHandler, InferenceError


class Silent(BaseHandler):
    def inference(self, text):
        self.context.batch.set_header(0, "X-Model-Run", "silent")
        if text[0] == b"refuse":
            raise InferenceError("refused", 422, {"X-Why": "because"})
        return {"piece": text}
"""

MODELS = {"marked": MARKED, "sent": SENT, "later": LATER, "silent": SILENT}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name, handler in MODELS.items():
        for executor in ("inline", "process"):
            write_model(root, f"{name}-{executor}", handler, f"{TEXT}executor: {executor}\n")
    with Server(root) as made:
        yield made


def fields(found):
    return {name.lower(): value for name, value in found.response.headers.items()}


@pytest.fixture(params=["inline", "process"])
def ask(request, server):
    def one(model, text="word", accept="text/event-stream"):
        path = f"/v2/models/{model}-{request.param}/infer"
        with StreamedResponse(server, path, text_request(text), accept) as found:
            if found.status != 200:
                return found.status, fields(found), found.response.read()
            if accept == "text/event-stream":
                documents = [document for _, document in found.events()]
            else:
                documents = list(found.lines())
            return found.status, fields(found), pieces(documents)

    return one


@pytest.mark.parametrize("accept", ["text/event-stream", "application/jsonl"])
def test_headers_before_the_first_chunk(ask, accept):
    _, headers, found = ask("marked", accept=accept)
    assert found == ["one ", "two "]
    assert headers["x-model-run"] == "run 0"
    assert headers["cache-control"] == "max-age=5"
    assert not {"x-late", "content-length"} & headers.keys()


@pytest.mark.parametrize("model", ["sent", "later"])
def test_other_ways_to_answer_piece_by_piece(ask, model):
    _, headers, found = ask(model)
    assert found == ["one ", "two "]
    assert headers["x-model-run"] == model


def test_a_handler_that_answers_once_and_one_that_fails(ask):
    _, headers, found = ask("silent")
    assert (headers["x-model-run"], found) == ("silent", ["word"])
    status, headers, _ = ask("silent", "refuse")
    assert (status, headers["x-why"]) == (422, "because")
