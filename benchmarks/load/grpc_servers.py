"""The ways to serve ModelInfer on grpcio, side by side: which one ksrv takes is decided here.

Usage:
    python benchmarks/load/grpc_servers.py [--rounds 5] [--seconds 1.0] [--json FILE]

Every server runs the same handler behind the same hand-off: a request goes to one other thread, as it
does in the engine, and its answer (W1: the tensor itself; W2: its first ten values) comes back. All
servers are up at once; a round gives each in turn the same load, and a server's median CPU time per
request is compared with that of generated protobuf classes on a sync server. The servers:

    generated   sync, message classes as (de)serialisers: what most Python servers do
    sync        sync, identity (de)serialisers and ksrv's scan; the pool thread waits for the answer
    deferred    as sync, but the pool thread leaves at once and the engine's thread sends the answer
    aio         grpc.aio with identity (de)serialisers and ksrv's scan
    direct      as deferred, but the method is taken from the completion queue (`server.grpc_direct`)
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any, cast

import numpy as np

from ksrv._native.memory.memory_budget import MemoryBudget
from ksrv.limits import Limits
from ksrv.protocol import grpc as protocol
from ksrv.protocol.protobuf import message_class
from ksrv.request import InferRequest, InferResponse, Tensor
from ksrv.server.grpc.calls import open_to_all
from ksrv.server.grpc.completion_queue import DirectCalls, Unary
from ksrv.server.grpc.unfinished_calls import UnfinishedCalls
from ksrv.spec import ModelSpec

METHOD = "/inference.GRPCInferenceService/ModelInfer"
SPEC = ModelSpec("m")
LIMITS = Limits()
OPTIONS = [
    ("grpc.max_receive_message_length", 2**31 - 1),
    ("grpc.max_send_message_length", 2**31 - 1),
    ("grpc.so_reuseport", 0),
]
SERVERS = ("generated", "sync", "deferred", "aio", "direct")
WORKLOADS = {"W1": (1, 16), "W2": (1, 224, 224, 3)}


def answer(array: Any) -> Any:
    return array if array.size <= 16 else array.reshape(1, -1)[:, :10]


class Engine:
    """One thread that answers requests in order."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Any, Callable[[Any], object]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, array: Any, done: Callable[[Any], object]) -> None:
        self._queue.put((array, done))

    def _run(self) -> None:
        while True:
            array, done = self._queue.get()
            done(answer(array))


def parse(message: bytes) -> InferRequest:
    return protocol.parse_infer(message, lambda name, version: SPEC, LIMITS)


def render(request: InferRequest, array: np.ndarray) -> bytes:
    output = Tensor("y", "FP32", array.shape, array)
    return protocol.render_infer(InferResponse("m", "", "", [output]), request)


class Ticket:
    """What `DirectCalls` asks of the engine's: an answer that another thread brings."""

    def __init__(self, ended: Callable[["Ticket"], None]) -> None:
        self._ended = ended
        self.answer: np.ndarray | None = None

    def bring(self, array: np.ndarray) -> None:
        self.answer = array
        self._ended(self)

    def done(self) -> bool:
        return self.answer is not None

    def cancel(self) -> bool:
        return False


class Calls:
    """What `DirectCalls` asks of ksrv's calls, over this file's engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def read(self, message: bytes, context: Any) -> InferRequest:
        return parse(message)

    def submit(self, request: InferRequest, ended: Any, *, allow_inline: bool) -> Ticket:
        ticket = Ticket(ended)
        self._engine.submit(request.inputs[0].data, ticket.bring)
        return ticket

    def finish(self, context: Any, request: InferRequest, ticket: Ticket) -> bytes:
        assert ticket.answer is not None
        return render(request, ticket.answer)


def serve(kind: str) -> None:
    import grpc

    engine = Engine()

    def sync_infer(message: bytes, context: Any) -> bytes:
        request = parse(message)
        future: Future[np.ndarray] = Future()
        engine.submit(request.inputs[0].data, future.set_result)
        return render(request, future.result())

    def generated_infer(message: Any, context: Any) -> Any:
        entry = message.inputs[0]
        array = np.frombuffer(message.raw_input_contents[0], np.float32).reshape(entry.shape)
        future: Future[np.ndarray] = Future()
        engine.submit(array, future.set_result)
        array = future.result()
        made = message_class("inference.ModelInferResponse")(model_name="m", id=message.id)
        made.outputs.add(name="y", datatype="FP32", shape=array.shape)
        made.raw_output_contents.append(array.tobytes())
        return made

    def deferred_infer(message: bytes, context: Any, send: Callable[[bytes | None], None]) -> None:
        request = parse(message)

        def finish(array: np.ndarray) -> None:
            send(render(request, array))
            send(None)

        engine.submit(request.inputs[0].data, finish)

    deferred_infer.experimental_non_blocking = True  # type: ignore[attr-defined]

    async def aio_infer(message: bytes, context: Any) -> bytes:
        request = parse(message)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[np.ndarray] = loop.create_future()
        engine.submit(
            request.inputs[0].data,
            lambda array: loop.call_soon_threadsafe(future.set_result, array),
        )
        return render(request, await future)

    def handlers(method: Any) -> list[Any]:
        return [
            grpc.method_handlers_generic_handler(
                "inference.GRPCInferenceService", {"ModelInfer": method}
            )
        ]

    async def serve_aio() -> None:
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers(handlers(grpc.unary_unary_rpc_method_handler(aio_infer)))
        print(server.add_insecure_port("127.0.0.1:0"), flush=True)
        await server.start()
        await server.wait_for_termination()

    if kind == "aio":
        asyncio.run(serve_aio())
        return
    server = grpc.server(ThreadPoolExecutor(16), options=OPTIONS)
    if kind == "direct":
        budget = MemoryBudget(1 << 32)
        direct = DirectCalls.on(
            server,
            {METHOD: Unary(open_to_all, LIMITS)},
            cast(Any, Calls(engine)),
            UnfinishedCalls(budget, head=10, rate=4096, most=1000),
            budget,
            threads=16,
            most=1000,
        )
        if direct is None:
            raise RuntimeError("this release of grpcio lacks what the direct way is written on")
        print(server.add_insecure_port("127.0.0.1:0"), flush=True)
        server.start()
        direct.start()
        server.wait_for_termination()
        return
    if kind == "generated":
        method = grpc.unary_unary_rpc_method_handler(
            generated_infer,
            message_class("inference.ModelInferRequest").FromString,
            message_class("inference.ModelInferResponse").SerializeToString,
        )
    elif kind == "sync":
        method = grpc.unary_unary_rpc_method_handler(sync_infer)
    else:
        # On the wire a unary answer is a stream of one message.
        method = grpc.unary_stream_rpc_method_handler(deferred_infer)
    server.add_generic_rpc_handlers(tuple(handlers(method)))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


def load(port: int, message: bytes, expected: int, streams: int, seconds: float, out: Any) -> None:
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}", OPTIONS[:2]) as channel:
        infer = channel.unary_unary(METHOD)
        counts = [0] * streams
        times: list[float] = []
        end = time.perf_counter() + seconds

        def client(index: int) -> None:
            while (start := time.perf_counter()) < end:
                size = len(infer(message))
                if size != expected:
                    raise AssertionError(f"the answer has {size} bytes, not {expected}")
                times.append(time.perf_counter() - start)
                counts[index] += 1

        threads = [threading.Thread(target=client, args=(index,)) for index in range(streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        out.put((sum(counts), statistics.median(times)))


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(rounds: int, seconds: float) -> dict[str, dict[str, dict[str, float]]]:
    processes = {
        kind: subprocess.Popen(
            [sys.executable, __file__, "--serve", kind], stdout=subprocess.PIPE, text=True
        )
        for kind in SERVERS
    }
    found: dict[str, dict[str, dict[str, float]]] = {}
    try:
        ports = {
            kind: int(cast(IO[str], process.stdout).readline())
            for kind, process in processes.items()
        }
        context = multiprocessing.get_context("spawn")
        for name, shape in WORKLOADS.items():
            array = np.zeros(shape, np.float32)
            made = message_class("inference.ModelInferRequest")(model_name="m")
            made.inputs.add(name="x", datatype="FP32", shape=shape)
            made.raw_input_contents.append(array.tobytes())
            message = made.SerializeToString()
            request = parse(message)
            expected = len(render(request, answer(request.inputs[0].data)))
            for streams in (1, 16 if name == "W1" else 8):
                samples: dict[str, list[tuple[float, float]]] = {kind: [] for kind in SERVERS}
                for turn in range(rounds + 1):
                    for kind in SERVERS:
                        before = cpu_seconds(processes[kind].pid)
                        out = context.Queue()
                        client = context.Process(
                            target=load,
                            args=(ports[kind], message, expected, streams, seconds, out),
                        )
                        client.start()
                        count, median = out.get()
                        client.join()
                        spent = cpu_seconds(processes[kind].pid) - before
                        if turn:  # the first round warms up
                            samples[kind].append((spent / count * 1e6, median * 1e6))
                row = {}
                for kind, pairs in samples.items():
                    row[kind] = {
                        "cpu_us": statistics.median(cpu for cpu, _ in pairs),
                        "least_cpu_us": min(cpu for cpu, _ in pairs),
                        "p50_us": statistics.median(p50 for _, p50 in pairs),
                    }
                base = dict(row["generated"])
                for figures in row.values():
                    figures["cpu_ratio"] = figures["cpu_us"] / base["cpu_us"]
                    figures["least_ratio"] = figures["least_cpu_us"] / base["least_cpu_us"]
                found[f"{name} c{streams}"] = row
                print(name, f"c{streams}", flush=True)
                for kind, figures in row.items():
                    print(
                        f"  {kind:10} {figures['cpu_us']:8.0f} us CPU  "
                        f"{figures['cpu_ratio']:5.2f}x  least {figures['least_cpu_us']:8.0f} us  "
                        f"{figures['least_ratio']:5.2f}x  p50 {figures['p50_us']:8.0f} us",
                        flush=True,
                    )
    finally:
        for process in processes.values():
            process.terminate()
            process.wait()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json")
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    found = measure(arguments.rounds, arguments.seconds)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    main()
