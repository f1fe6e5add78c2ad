"""Drives the parsers with whole, cut and damaged requests, for a run under valgrind.

    PYTHONMALLOC=malloc valgrind --log-file=valgrind.log python tools/native_valgrind.py [rounds]
    grep -c _native/ valgrind.log

The second command must print 0: the interpreter and the loading of libraries cause reports, ksrv's code none. Build with
KSRV_TRACE=1 to see lines of a module in a report. Each body is in heap memory of exactly its size, so that valgrind
sees a read of one byte too far, and a branch on a byte that was never written.
"""

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from ksrv.errors import KsrvError
from ksrv.limits import Limits
from ksrv.model.spec import ImageSpec, ModelSpec, TensorSpec
from ksrv.protocol import grpc, rest
from ksrv.request import InferRequest, InferResponse, Tensor
from tests.support.wire.v2_wire import FORMS, Plain, document, grpc_request, rest_input

LIMITS = Limits()
SPECS = (
    ModelSpec("m"),
    ModelSpec("m", inputs=(TensorSpec("s", "BYTES", (-1,)),)),
    ModelSpec("m", inputs=(TensorSpec("s", "UINT8", (-1, 8, 8, 3), ImageSpec()),)),
)


def tensors(rng: random.Random) -> list[Plain]:
    """Return some tensors; some are empty."""
    count = rng.randrange(40)
    return [
        Plain("x", "FP32", (count,), [float(rng.randrange(1000)) / 8 for _ in range(count)]),
        Plain("i", "INT64", (2, 2), [rng.randrange(-(2**40), 2**40) for _ in range(4)]),
        Plain("b", "BOOL", (3,), [True, False, True]),
        Plain("s", "BYTES", (2,), [b"a" * rng.randrange(70), b""]),
    ]


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """Return the bytes cut or with some of them changed; one in four as they are."""
    changed = bytearray(raw)
    match rng.randrange(4):
        case 0:
            del changed[rng.randrange(len(changed)) :]
        case 1:
            for _ in range(rng.randrange(1, 5)):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
        case 2:
            at = rng.randrange(len(changed))
            changed[at : at + rng.randrange(4)] = rng.randbytes(rng.randrange(4))
    return bytes(changed)


def touch(request: InferRequest) -> int:
    """Return a sum over all bytes of a request, so that each is looked at."""
    total = 0
    for tensor in request.inputs:
        parts = tensor.data if isinstance(tensor.data, list) else [tensor.data.tobytes()]
        total += sum(sum(bytes(part)) for part in parts)
    return total


def drive(rounds: int) -> dict[str, int]:
    """Parse and render; return how often what happened."""
    rng = random.Random(7)
    seen = {"parsed": 0, "refused": 0, "written": 0}

    def parse(call) -> None:  # type: ignore[no-untyped-def]
        try:
            touch(call())
        except KsrvError:
            seen["refused"] += 1
        else:
            seen["parsed"] += 1

    for _ in range(rounds):
        spec = rng.choice(SPECS)
        entries, blocks = [], b""
        for tensor in tensors(rng):
            entry, block = rest_input(tensor, rng.choice(FORMS))
            entries.append(entry)
            blocks += block
        head = document(entries, id="4é2", parameters={"a": 1.5, "b": [None, {"c": "\n"}]})
        body = damaged(head + blocks, rng)
        exact = np.frombuffer(body, np.uint8).copy() if body else np.empty(0, np.uint8)
        length = str(min(len(head), len(body))) if blocks or rng.random() < 0.5 else None
        parse(lambda: rest.parse_infer(exact, length, spec, LIMITS))  # noqa: B023
        typed = rng.random() < 0.5
        message = damaged(grpc_request("m", tensors(rng), typed=typed), rng)
        parse(lambda: grpc.parse_infer(message, lambda *_: spec, LIMITS))  # noqa: B023
        values = np.arange(rng.randrange(100), dtype="<f4")
        outputs = [
            Tensor("y", "FP32", values.shape, values, {"k": "é"}),
            Tensor("s", "BYTES", (1,), [b"z"]),
        ]
        answer = grpc.render_infer(InferResponse("m", "1", "", outputs), InferRequest("m"))
        seen["written"] += sum(map(sum, answer)) > 0
    return seen


if __name__ == "__main__":
    print(drive(int(sys.argv[1]) if len(sys.argv) > 1 else 300))
