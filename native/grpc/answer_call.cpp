// Sends answers: headers, messages, trailers.

#include <algorithm>
#include <charconv>
#include <cstring>
#include <new>

#include "grpc/connection.hpp"
#include "grpc/server.hpp"

namespace ksrv::grpc {

namespace {

using http2::field_of;

constexpr uint64_t OVERDUE_SHARE = 10;  // an answer is overdue after this part of the grace period

template <size_t N, size_t M> http2::Field fixed(const char (&name)[N], const char (&value)[M]) noexcept {
    return field_of(name, N - 1, value, M - 1, http2::FIELD_NO_COPY);
}

http2::Field id_field(const Call &call) noexcept {
    return field_of("x-request-id", 12, call.request_id.text, call.request_id.length,
                    http2::FIELD_NO_INDEX);
}

// The fields at the end of a call. Their texts must stay valid until they are submitted.
struct Ending {
    char code[12];
    std::string text;
    SmallVector<http2::Field, 8> fields;

    Ending(const Call &call, bool alone, bool decompresses) {
        if (alone) {
            fields.push_back(fixed(":status", "200"));
            fields.push_back(fixed("content-type", "application/grpc"));
            fields.push_back(decompresses ? fixed("grpc-accept-encoding", "identity, deflate, gzip")
                                          : fixed("grpc-accept-encoding", "identity"));
        }
        if (call.status == OK) {
            fields.push_back(fixed("grpc-status", "0"));
        } else {
            const std::to_chars_result end = std::to_chars(code, code + sizeof code, call.status);
            fields.push_back(field_of("grpc-status", 11, code, static_cast<size_t>(end.ptr - code), 0));
            text = percent_encoded(call.status_text.data(), call.status_text.size());
            fields.push_back(field_of("grpc-message", 12, text.data(), text.size(), 0));
        }
        if (alone || call.status != OK) fields.push_back(id_field(call));
        for (const auto &entry : call.metadata)
            fields.push_back(field_of(entry.first.data(), entry.first.size(), entry.second.data(),
                                      entry.second.size(), 0));
    }
};

}  // namespace

// Sends everything that a call has to send. Called by the owner while the stream is open.
void Connection::answer(Call *call) noexcept {
    bool finished, cancelled, empty;
    {
        std::lock_guard<std::mutex> guard(call->lock);
        finished = call->finished;
        cancelled = call->cancelled;
        empty = call->out_first == nullptr;
    }
    if (finished && call->counted_open) {  // the server is done with it, even if the client does not read the answer
        call->counted_open = false;
        server_->open_calls.fetch_sub(1, std::memory_order_relaxed);
    }
    if (call->trailed) return;
    if (cancelled) {
        stop_receiving(call);
        call->trailed = true;
        session_.reset(call->stream, http2::CANCEL);
        return;
    }
    if (finished) stop_receiving(call);
    if (finished && !empty) note_untaken(call);
    if (call->answered) {
        session_.resume(call->stream);
        return;
    }
    if (!finished && empty) return;
    call->answered = true;
    call->answer_looked = now_;
    if (empty) {
        call->trailed = true;
        try {
            const Ending ending(*call, true, server_->config.decompress);
            session_.answer(call->stream, ending.fields.data(), ending.fields.size(), false);
        } catch (const std::bad_alloc &) {
            session_.reset(call->stream, http2::INTERNAL_ERROR);
        }
        return;
    }
    const http2::Field fields[] = {fixed(":status", "200"), fixed("content-type", "application/grpc"),
                                   server_->config.decompress
                                       ? fixed("grpc-accept-encoding", "identity, deflate, gzip")
                                       : fixed("grpc-accept-encoding", "identity"),
                                   id_field(*call)};
    session_.answer(call->stream, fields, sizeof fields / sizeof *fields, true);
}

// The answer is complete and waits for its client.
void Connection::note_untaken(Call *call) noexcept {
    if (call->whole_ns) return;
    call->whole_ns = now_;
    untaken.fetch_add(1, std::memory_order_relaxed);
    server_->untaken.fetch_add(1, std::memory_order_relaxed);
    look_by(now_ + overdue_ns());
}

uint64_t Connection::overdue_ns() const noexcept { return server_->config.grace_ns / OVERDUE_SHARE; }

void Connection::note_taken(Call *call) noexcept {
    if (!call->whole_ns) return;
    call->whole_ns = 0;
    untaken.fetch_sub(1, std::memory_order_relaxed);
    server_->untaken.fetch_sub(1, std::memory_order_relaxed);
    if (call->overdue) overdue.fetch_sub(1, std::memory_order_relaxed);
    call->overdue = false;
}

// Drops half of the answers that clients do not read, the oldest first: of the overdue answers, or of all.
void Connection::end_untaken(bool of_all) noexcept {
    uint32_t most = ((of_all ? untaken : overdue).load(std::memory_order_relaxed) + 1) / 2;
    for (Call *call = oldest_call(); call && most; call = call->previous) {
        if (!(of_all ? call->whole_ns != 0 : call->overdue)) continue;
        server_->count(ServerCounter::calls);
        drop_answer(call);
        --most;
    }
}

// gRPC clients read this error code as RESOURCE_EXHAUSTED.
void Connection::drop_answer(Call *call) noexcept {
    note_taken(call);
    call->trailed = true;
    {
        std::lock_guard<std::mutex> guard(call->lock);
        call->drop_answer();
        call->status = RESOURCE_EXHAUSTED;
    }
    session_.reset(call->stream, http2::ENHANCE_YOUR_CALM);
}

void Connection::send_trailers(Call *call) noexcept {
    try {
        const Ending ending(*call, false, false);
        session_.trailers(call->stream, ending.fields.data(), ending.fields.size());
    } catch (const std::bad_alloc &) {
        session_.reset(call->stream, http2::INTERNAL_ERROR);
    }
}

size_t Connection::offer(void *stream, size_t most, http2::Behind *behind) noexcept {
    Call *call = static_cast<Call *>(stream);
    size_t offered;
    bool finished;
    {
        std::lock_guard<std::mutex> guard(call->lock);
        offered = std::min(most, call->out_bytes);
        finished = call->finished && offered == call->out_bytes;
    }
    if (finished && !call->trailed) {
        call->trailed = true;
        const bool is_call = call->method != nullptr;  // otherwise it was refused with an HTTP status
        if (is_call) send_trailers(call);
        note_taken(call);
        *behind = is_call ? http2::Behind::trailers : http2::Behind::end;
    }
    return offered;
}

// RST_STREAM tells a peer that still sends to stop (RFC 9113 8.1).
void Connection::answer_over(void *stream) noexcept {
    Call *call = static_cast<Call *>(stream);
    if (!call->peer_over) session_.reset(call->stream, http2::NO_ERROR);
}

bool Connection::take(void *stream, size_t length, http2::OutgoingBytes *out) noexcept {
    Call *call = static_cast<Call *>(stream);
    call->answer_sent += length;
    std::lock_guard<std::mutex> guard(call->lock);
    call->out_bytes -= length;
    while (length) {
        Payload *payload = call->out_first;
        const size_t some = std::min(length, payload->size - payload->taken);
        if (!payload->take(some, out)) return false;
        length -= some;
        if (payload->taken == payload->size) {
            call->out_first = payload->next;
            if (!call->out_first) call->out_last = nullptr;
            payload->release();
        }
    }
    call->changed.notify_all();
    return true;
}

}  // namespace ksrv::grpc
