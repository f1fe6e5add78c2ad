// ModelInfer without Python before the handler: from the received message into the model's queue.
//
// Strategy: the message is scanned by protobuf/infer_request.hpp, which Python's parser uses as well, and compared with
// the model's signature, as over HTTP. If everything matches, it becomes a `FastRequest` in the model's queue, like a
// REST request. The answer is written as protobuf directly from the handler's arrays. Every other message, above all an
// invalid message, is left to Python, which reports errors.

#pragma once

#include "grpc/call.hpp"
#include "server/fast_path.hpp"
#include "server/route_table.hpp"

namespace ksrv::grpc {

// Makes a request of a call's complete message, and takes over the message. Null if Python must read it.
FastRequest *make_fast_call(Call *call, const RouteTable &routes, uint64_t now) noexcept;

// Gives the message back to the call, for Python, and releases the request.
void undo_fast_call(FastRequest *request) noexcept;

}  // namespace ksrv::grpc
