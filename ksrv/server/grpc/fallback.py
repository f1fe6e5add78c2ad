"""The unary calls on grpcio's public server, for releases that lack what `completion_queue` is written on.

Each method is registered as one that takes a stream of requests, because only of those a message is
received when it is asked for, and so after the credentials. A thread waits for each message here.
"""

import functools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ksrv._native.memory.memory_budget import MemoryBudget
from ksrv.server.grpc.calls import Context, abort, failure_of
from ksrv.server.grpc.completion_queue import Unary
from ksrv.server.grpc.infer import InferCalls, Permit, Send, ThreadPermits
from ksrv.server.grpc.messages import Messages, admitted
from ksrv.server.grpc.unfinished_calls import UnfinishedCalls


def fallback(
    methods: Mapping[str, Unary],
    calls: InferCalls,
    unfinished: UnfinishedCalls,
    budget: MemoryBudget,
    *,
    threads: int,
    pool: ThreadPoolExecutor,
) -> Any:
    """Return grpcio's handler of the methods.

    Args:
        methods: The methods by their paths.
        calls: Reads and answers requests of ModelInfer.
        unfinished: The calls whose message has not arrived.
        budget: The bytes that requests may hold together.
        threads: Requests of ModelInfer whose thread waits for the answer.
        pool: Where requests of ModelInfer are read.
    """
    import grpc

    def message_of(  # noqa: RET503 - abort raises
        method: Unary, requests: Any, context: Context
    ) -> bytes:
        try:
            method.check(context)
            received = Messages(requests, context, unfinished, small=method.small).only()
            message, reservation = admitted(received, method.limits, budget)
        except grpc.RpcError:
            raise  # grpcio's own word that the call is over
        except Exception as error:  # noqa: BLE001 - the boundary to grpcio, which hides them
            failure = failure_of(error)
        else:
            if not context.add_callback(reservation.close):
                reservation.close()
            return message
        abort(context, failure)

    def other(method: Unary, requests: Any, context: Context) -> bytes:  # noqa: RET503 - abort raises
        assert method.answer is not None, "ModelInfer has handlers of its own"
        message = message_of(method, requests, context)
        try:
            return method.answer(message, context)
        except Exception as error:  # noqa: BLE001 - the boundary to grpcio, which hides them
            failure = failure_of(error)
        abort(context, failure)

    def waited(method: Unary, permit: Permit, requests: Any, context: Context) -> bytes:
        try:
            return calls.infer(permit, message_of(method, requests, context), context)
        finally:
            permit.release()

    def deferred(
        method: Unary, requests: Any, context: Context, send_response_callback: Send
    ) -> None:
        calls.infer_later(message_of(method, requests, context), context, send_response_callback)

    permits = ThreadPermits(threads)

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        """Chooses for each ModelInfer how its answer is waited for."""

        def service(self, handler_call_details: Any) -> Any:
            method = methods.get(handler_call_details.method)
            if method is None:
                return None
            if method.answer is not None:
                behavior = functools.partial(other, method)
                behavior.experimental_thread_pool = method.pool  # type: ignore[attr-defined]
                return grpc.stream_unary_rpc_method_handler(behavior)
            permit = permits.take()
            if permit is not None:
                behavior = functools.partial(waited, method, permit)
                behavior.experimental_thread_pool = pool  # type: ignore[attr-defined]
                return grpc.stream_unary_rpc_method_handler(behavior)
            later = functools.partial(deferred, method)
            later.experimental_non_blocking = True  # type: ignore[attr-defined]
            later.experimental_thread_pool = pool  # type: ignore[attr-defined]
            # On the wire a unary answer is a stream of one message.
            return grpc.stream_stream_rpc_method_handler(later)

    return Handler()
