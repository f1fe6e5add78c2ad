"""Runs batches through ksrv's runner of TorchServe handlers and writes what came back.

The same program runs with the real torchserve installed and with ksrv's stand-in for it.
"""

import base64
import json
import os
import sys
import traceback
from pathlib import Path

from ksrv.dialects.registry import formats
from ksrv.dialects.torchserve.calls import ROUTES, TorchServeCall
from ksrv.handlers.runner import make_runner
from ksrv.repository.layout import Repository
from ksrv.request import ExecutorInputs, RequestPart, Tensor


class Chunks(list):
    writer = None

    def __call__(self, outputs):
        self.append([base64.b64encode(bytes(item)).decode() for item in outputs.tensors[0].data])

    def listening(self):
        return frozenset({0, 1})


def run(runner, bodies, streamed):
    call = TorchServeCall(content_types={"body": "application/json"})
    requests = [
        RequestPart(slice(row, row + 1), f"id{row}", dialect=ROUTES, facts=call)
        for row in range(len(bodies))
    ]
    elements = [json.dumps(body).encode() for body in bodies]
    tensor = Tensor("body", "BYTES", (len(bodies),), elements)
    chunks = Chunks()
    emit = chunks if streamed else None
    found = runner.run(ExecutorInputs({"body": tensor}, len(bodies), requests, emit=emit))
    items = found.tensors[0].data if found.tensors else []
    return {
        "items": [base64.b64encode(bytes(item)).decode() for item in items],
        "failures": {
            place: [int(error.http_status), error.message]
            for place, error in found.failures.items()
        },
        "headers": found.headers,
        "chunks": list(chunks),
    }


def main(jobs, results, kind):
    found = {}
    for folder, batches in json.loads(Path(jobs).read_text()):
        os.chdir(folder)
        source = Repository([folder], formats()).scan()[Path(folder).name].versions[""]
        runner = make_runner(source)
        runner.load()
        import ts

        assert ("site-packages" in (getattr(ts, "__file__", None) or "")) == (kind == "real"), ts
        found[Path(folder).name] = [run(runner, *batch) for batch in batches]
        sys.path.remove(folder)
    Path(results).write_text(json.dumps(found))


status = 1
try:
    main(*sys.argv[1:])
    status = 0
except BaseException:
    traceback.print_exc()
finally:
    sys.stderr.flush()
    os._exit(status)  # the real package's micro-batching leaves threads that nobody ends
