// ModelInfer without Python before the handler: from the received message into the model's queue.
//
// Strategy: the message is read by the reader that all messages share, and compared with the model's signature, as over
// HTTP. A request that leaves nothing to decide becomes a request of the same kind in the same queue. Its answer is
// written as protobuf directly from the handler's arrays. All other requests, and above all invalid requests, are left
// to the general path, which reports errors.

#pragma once

#include "grpc/call.hpp"
#include "server/fast_path.hpp"
#include "server/route_table.hpp"

namespace ksrv::grpc {

// Makes a request of a call's complete message, and takes the message over. Null if the general path must read it.
FastRequest *make_fast_call(Call *call, const RouteTable &routes, uint64_t now) noexcept;

// Returns the message to the call, for the general path.
void undo_fast_call(FastRequest *request) noexcept;

}  // namespace ksrv::grpc
