// ModelInfer without Python before the handler: from the received message into the model's queue.
//
// Strategy: the message is read by the one reader that every message has, and compared with the model's
// signature, as over HTTP. A request that leaves nothing to decide becomes a request of the same kind
// in the same queue; its answer is written as protobuf straight from the handler's arrays. Everything else,
// wrong requests above all, goes the general way, which says what is wrong with them.

#pragma once

#include "grpc/call.hpp"
#include "server/fast_path.hpp"
#include "server/route_table.hpp"

namespace ksrv::grpc {

// Makes a request of a call's complete message, which the call loses to it; null where the message is not of that
// kind.
FastRequest *make_fast_call(Call *call, const RouteTable &routes, uint64_t now) noexcept;

// Gives the call its message back, for the general way.
void undo_fast_call(FastRequest *request) noexcept;

}  // namespace ksrv::grpc
