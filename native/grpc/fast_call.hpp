// ModelInfer without Python before the handler: from the received message into the model's queue.
//
// Strategy: the message is scanned by protobuf/infer_request.hpp, which Python's parser uses as well, and compared with
// the model's signature, as over HTTP. If everything matches, it becomes a `FastRequest` in the model's queue, like a
// REST request. The answer is written as protobuf directly from the handler's arrays. Every other message, above all an
// invalid message, is left to Python, which reports errors.

#pragma once

#include "grpc/call.hpp"
#include "protobuf/infer_request.hpp"
#include "server/fast_response.hpp"
#include "server/route_table.hpp"

namespace ksrv::grpc {

// The messages of one method of inference, which may be another server's. No function throws.
struct MessageForm {
    // Any outcome but OK leaves the message to Python.
    message::Outcome (*scan)(const unsigned char *message, size_t size, const message::Limits &limits,
                             message::Request &request);
    // The way to the first tensor: for each level of messages the fields, as bits, that lead on; then 0.
    uint32_t tensor_path[4];
    // Writes the answer with the request's rows of the batch, from `row` on. `alone`: the request is the whole batch,
    // so each output keeps its first dimension. False if memory is short.
    bool (*write)(protobuf::Writer &out, FastRequest &request, const ReplyPart *parts, int part_count, int64_t row,
                  bool alone);
};

extern const MessageForm MODEL_INFER;

// The offset of the first tensor, read from the first bytes of a message; 0 if they do not have its beginning.
size_t first_tensor(const MessageForm &form, const unsigned char *message, size_t length) noexcept;

// Makes a request of a call's complete message, and takes over the message. Null if Python must read it.
FastRequest *make_fast_call(Call *call, const RouteTable &routes, uint64_t now) noexcept;

// Gives the message back to the call, for Python, and releases the request.
void undo_fast_call(FastRequest *request) noexcept;

}  // namespace ksrv::grpc
