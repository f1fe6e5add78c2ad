"""Models, HTTP servers and messages for the tests of fast-path requests: an engine and sockets in one process."""

import contextlib
import itertools
import json
import re
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np

from ksrv._native.http.request_head import HeadRules
from ksrv._native.reactor.connection_limits import ConnectionLimits
from ksrv._native.reactor.event_loop import EventLoop
from ksrv._native.server.server import HttpServer
from ksrv.dialects.registry import grpc_methods
from ksrv.engine.engine import Engine, EngineSettings
from ksrv.limits import Limits
from ksrv.repository.layout import Repository
from ksrv.server.app import make_app
from ksrv.server.rest.fast_path import FastPath, endpoint_for, prepared_answers, render_error
from ksrv.server.rest.metadata import describe
from ksrv.server.settings import ServerSettings
from ksrv.server.shared.parts import server_parts
from tests.support.wire.grpc_calls import ServerWithThreads
from tests.support.wire.http_reader import read_message

PAIR = """
import numpy as np
from ksrv import BaseHandler

class Pair(BaseHandler):
    def inference(self, a, b):
        return {"sum": a + b, "rows": np.full((len(a), 1), len(a), np.int64)}
"""
PAIR_YAML = """
handler: handler.py
inputs:
  - {name: a, datatype: FP32, shape: [-1, 4]}
  - {name: b, datatype: FP32, shape: [-1, 4]}
outputs:
  - {name: sum, datatype: FP32, shape: [-1, 4]}
  - {name: rows, datatype: INT64, shape: [-1, 1]}
"""
ONE = """
import time
from pathlib import Path
from pathlib import Path
from ksrv import BaseHandler, InferenceError

class One(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        self.kept = []

    def inference(self, x):
        what = int(x[0, 0])
        if what == -1:
            raise RuntimeError("secret")
        if what == -2:
            raise InferenceError("not today", 422)
        if what == -3:
            here, turn = Path(__file__).parent, int(x[0, 1])
            (here / f"began-{turn}").touch()
            while not (here / f"go-{turn}").exists():
                time.sleep(0.002)
        batch = self.context.batch
        if what == -4:
            batch.set_header(0, "x-extra", "yes")
        if what == -5:
            batch.set_parameter(0, "extra", 7)
        if what == -6:
            x[0, 1] = len(batch.requests)
            x[0, 2] = len(batch.requests[0].id)
            x[0, 3] = len(batch.requests[0].headers.get("x-mine", ""))
        x[x[:, 0] == -9, 2] = len(batch.requests)
        for row in range(len(x)):
            if x[row, 0] == -7:
                batch.fail(row, f"row {row} is bad")
        if what == -8:
            self.kept.append(x)
        return x
"""
ONE_YAML = """
handler: handler.py
timeout_ms: 60000
queue_size: 50
inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 4]}]
"""
WIDE_YAML = """
handler: handler.py
inputs: [{name: x, datatype: FP32, shape: [-1, 4096]}]
outputs: [{name: y, datatype: FP32, shape: [-1, 4096]}]
"""
OPEN = """
from ksrv import BaseHandler

class Open(BaseHandler):
    def inference(self, x):
        return {"first": x, "second": [str(row) for row in x]} if x[0, 0] < 0 else {"first": x}
"""
OPEN_YAML = """
handler: handler.py
inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]
"""
UNEVEN = """
from ksrv import BaseHandler

class Sum(BaseHandler):
    def inference(self, a, b):
        return {"y": a.sum(1, keepdims=True) + b}
"""
UNEVEN_YAML = """
handler: handler.py
inputs:
  - {name: a, datatype: UINT8, shape: [-1, 3]}
  - {name: b, datatype: FP64, shape: [-1, 1]}
outputs: [{name: y, datatype: FP64, shape: [-1, 1]}]
"""
SHOWN = """
import json
from ksrv import BaseHandler

class Shown(BaseHandler):
    def inference(self, **arrays):
        flags = ("c_contiguous", "aligned", "writeable", "owndata")
        shown = {
            name: [type(x).__name__, x.dtype.str, x.shape, x.strides]
            + [bool(getattr(x.flags, flag)) for flag in flags]
            for name, x in sorted(arrays.items())
        }
        return {"shown": [json.dumps(shown) for _ in arrays["a"]]}
"""
SHOWN_YAML = """
handler: handler.py
inputs:
  - {name: a, datatype: FP32, shape: [-1, 2, 1, 3]}
  - {name: b, datatype: INT64, shape: [-1]}
"""
EVERY = """
import numpy as np
from ksrv import BaseHandler

class Every(BaseHandler):
    def inference(self, bools, ints, reals):
        with np.errstate(all="ignore"):
            return {
                "bools": ~bools, "ints": ints, "reals": reals, "small": (reals / 0).astype("f4"),
                "bytes": (ints & 255).astype("u1"), "half": reals.astype("f2"),
            }
"""
EVERY_YAML = """
handler: handler.py
inputs:
  - {name: bools, datatype: BOOL, shape: [-1, 2]}
  - {name: ints, datatype: INT64, shape: [-1]}
  - {name: reals, datatype: FP64, shape: [-1, 1, 2]}
outputs:
  - {name: bools, datatype: BOOL, shape: [-1, 2]}
  - {name: ints, datatype: INT64, shape: [-1]}
  - {name: reals, datatype: FP64, shape: [-1, 1, 2]}
  - {name: small, datatype: FP32, shape: [-1, 1, 2]}
  - {name: bytes, datatype: UINT8, shape: [-1]}
  - {name: half, datatype: FP16, shape: [-1, 1, 2]}
"""
JOINED = "batching: {max_batch_size: 8, max_delay_ms: 0}\n"
MODELS = {
    "pair": (PAIR, PAIR_YAML),
    "one": (ONE, ONE_YAML),
    "versions/2": (ONE, ONE_YAML),
    "joined": (ONE, ONE_YAML + JOINED),
    "waits": (ONE, ONE_YAML + "batching: {max_batch_size: 8, max_delay_ms: 100}\n"),
    "full": (ONE, ONE_YAML + "batching: {max_batch_size: 8, max_delay_ms: 50000}\n"),
    "hurried": (ONE, ONE_YAML.replace("timeout_ms: 60000", "timeout_ms: 200")),
    "separate": (ONE, ONE_YAML + "executor: process\n" + JOINED),
    "wide": (ONE, WIDE_YAML),
    "open": (OPEN, OPEN_YAML),
    "shown": (SHOWN, SHOWN_YAML),
    "every": (EVERY, EVERY_YAML),
    "every-joined": (EVERY, EVERY_YAML + JOINED),
    "shown-joined": (SHOWN, SHOWN_YAML + JOINED),
}


@contextlib.contextmanager
def started(root: Path, models: dict[str, tuple[str, str]]) -> Iterator[Any]:
    """An engine of the models that are written to a folder: handlers and settings by their names."""
    for name, (handler, settings) in models.items():
        (root / name).mkdir(parents=True)
        (root / name / "handler.py").write_text(handler)
        folder = root / name.partition("/")[0]
        (folder / "handler.py").write_text(handler)
        (folder / "model.yaml").write_text(settings)
    engine = Engine(Repository([root]), EngineSettings())
    engine.start()
    try:
        assert all(state.state == "READY" for state in engine.index()), engine.index()
        yield engine
    finally:
        engine.close(5)


@contextlib.contextmanager
def serving(folder: Path, handler: str, settings: Any) -> Iterator[Any]:
    """An engine of one test, with one model."""
    folder.mkdir()
    (folder / "handler.py").write_text(handler)
    (folder / "model.yaml").write_text(settings)
    engine = Engine(Repository([folder]), EngineSettings())
    engine.start()
    try:
        yield engine
    finally:
        engine.close(5)


class Open:
    def check(self, authorization: Any) -> None:
        raise AssertionError("nobody is checked here")

    def client_of(self, authorization: Any) -> str:
        return ""

    needs_token = hides_tokens = False


@contextlib.contextmanager
def opened(
    engine: Any,
    *,
    endpoints: bool = True,
    access: Any = None,
    nan_literals: bool = False,
    connections: dict[str, float] | None = None,
    **options: Any,
) -> Iterator[Any]:
    limits = Limits()
    access = access or cast(Any, Open())
    plain: dict[str, Any] = {}
    make_app(server_parts(engine, ServerSettings(), plain_routes=plain))
    settings = ServerSettings(nan_literals=nan_literals)
    route = FastPath(server_parts(engine, settings, access, plain_routes=plain))
    check = route.admits if access.needs_token else None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        loop = EventLoop()
        http_server = HttpServer(
            loop,
            HeadRules(body=1 << 30),
            ConnectionLimits(ServerSettings(), **(connections or {})),
            route,
            prepared_answers(limits, ()),
            check=check,
            plain=[(path, one.rows, one.answer) for path, one in plain.items()],
            **options,
        )
        http_server.listen([listener.fileno()])
        made: dict[int, Any] = {}
        routes = []
        for name, version, model in engine.routable_models():
            endpoint = (
                made.setdefault(id(model), endpoint_for(model, route, limits))
                if endpoints
                else None
            )
            full = render_error(model.queue_full())
            described = describe(engine, name, model, limits, ready=True)
            paths = route.plain_paths(model.spec)
            routes.append((name, version, model.queue, full, endpoint, *described, paths))
        http_server.set_routes(routes)
        threads = [threading.Thread(target=loop.run, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        http_server.accept(True)
        try:
            yield http_server, listener.getsockname()
        finally:
            http_server.stop()
            loop.stop()
            for thread in threads:
                thread.join()


@contextlib.contextmanager
def opened_grpc(engine: Any) -> Iterator[tuple[ServerWithThreads, str]]:
    """A native gRPC server whose calls take the fast path if they can, and its address."""
    server = ServerWithThreads(server_parts(engine, ServerSettings()), grpc_methods)
    port = server.start("127.0.0.1:0")
    try:
        set_grpc_routes(server, engine)
        yield server, f"127.0.0.1:{port}"
    finally:
        server.stop(5)


def set_grpc_routes(server: ServerWithThreads, engine: Any) -> None:
    """Have the calls of an engine's models take the fast path."""
    path = FastPath(server_parts(engine, ServerSettings(), cast(Any, Open())))
    server.set_routes(
        [
            (name, version, endpoint)
            for name, version, model in engine.routable_models()
            if (endpoint := endpoint_for(model, path, Limits())) is not None
        ]
    )


def entry(name: str, array: Any, **more: Any) -> Any:
    kinds = {"f4": "FP32", "i8": "INT64", "f8": "FP64"}
    parameters = {"binary_data_size": array.nbytes, **more.pop("parameters", {})}
    return {
        "name": name,
        "datatype": kinds[array.dtype.str[1:]],
        "shape": list(array.shape),
        "parameters": parameters,
        **more,
    }


def posted(model: str, text: bytes, tail: bytes | None = None, fields: str = "") -> bytes:
    """An infer request of JSON, and of what follows the JSON."""
    length = "" if tail is None else f"Inference-Header-Content-Length: {len(text)}\r\n"
    body = text + (tail or b"")
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\n{fields}{length}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def message(
    model: str,
    arrays: Any,
    *,
    fields: str = "",
    outputs: Any = None,
    parameters: Any = None,
    text: Any = None,
    **more: Any,
) -> Any:
    document = {"inputs": [entry(name, array) for name, array in arrays.items()], **more}
    document["parameters"] = {"binary_data_output": True} if parameters is None else parameters
    if outputs is not None:
        document["outputs"] = outputs
    header = text or json.dumps(document, ensure_ascii=False).encode()
    return posted(model, header, b"".join(array.tobytes() for array in arrays.values()), fields)


def json_message(
    model: str, inputs: Any, *, fields: str = "", text: Any = None, **more: Any
) -> Any:
    """A request whose inputs are numbers in its JSON; the text of each stands as it is sent."""
    if text is None:
        entries = [
            {"name": name, "datatype": datatype, "shape": shape, "data": f"<{name}>"}
            for name, (datatype, shape, _) in inputs.items()
        ]
        text = json.dumps({"inputs": entries, **more}, ensure_ascii=False)
        for name, (_, _, numbers) in inputs.items():
            text = text.replace(f'"<{name}>"', numbers)
    return posted(model, text.encode(), None, fields)


def chunked(data: bytes, *sizes: int, end: bytes = b"0\r\n\r\n", fields: bytes = b"") -> bytes:
    """The same message in chunks of these sizes, and one chunk with the rest."""
    head, _, body = data.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
    pieces = []
    for size in (*sizes, len(body)):
        pieces.append(body[:size])
        body = body[size:]
    made = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece)
    head = b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b""]) + fields + b"\r\n"
    return head + made + end


def row(*values: Any, rows: int = 1, dtype: str = "<f4") -> Any:
    array = np.zeros((rows, 4), dtype)
    array.reshape(-1)[: len(values)] = values
    return array


def ask(address: tuple[str, int], data: Any) -> Any:
    with socket.create_connection(address, 20) as client:
        client.sendall(data)
        return read_message(client)[:2]


class Hold:
    """Requests that the handler in a folder does not answer before the context ends."""

    turns = itertools.count(1)

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turn = next(self.turns)
        self.x = row(-3, self._turn)

    @property
    def began(self) -> Any:
        return (self._folder / f"began-{self._turn}").exists()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        (self._folder / f"go-{self._turn}").touch()

    def begin(self, client: Any, model: str) -> None:
        """Send one and wait until its handler runs; one that expired before that is sent again."""
        give_up = time.monotonic() + 60
        while not self.began:
            assert time.monotonic() < give_up, "the handler did not begin"
            client.sendall(message(model, {"x": self.x}))
            while not (self.began or readable([client], 0.01)):
                assert time.monotonic() < give_up, "the handler did not begin"
            if not self.began:
                assert status(read_message(client)[0]) == 504


def readable(clients: Any, seconds: float) -> Any:
    return select.select(clients, [], [], seconds)[0]


def status(head: bytes) -> int:
    return int(head.split(b" ", 2)[1])


def stripped(head: bytes) -> Any:
    """A head without what differs from one answer to the next."""
    head = re.sub(rb"\r\n(?:Date|x-request-id): [^\r]+", b"", head)
    return re.sub(rb"dur=[0-9.]+", b"dur=", head)


def ask_both(fast: Any, general: Any, data: Any) -> int:
    """Have a message answered on both ways alike; return how many requests took the fast path."""
    (http_server, address), (other, elsewhere) = fast, general
    before, others = http_server.counters()["fast_path"], other.counters()["fast_path"]
    mine, theirs = ask(address, data), ask(elsewhere, data)
    assert stripped(mine[0]) == stripped(theirs[0])
    assert mine[1] == theirs[1]
    assert other.counters()["fast_path"] == others
    return int(http_server.counters()["fast_path"] - before)
