// Requests that are not gRPC's, on their way to the HTTP server and back.

#include <algorithm>
#include <new>

#include "grpc/connection.hpp"
#include "grpc/server.hpp"

namespace ksrv::grpc {

namespace {

const http2::Field STATUS_100 = http2::field_of(":status", 7, "100", 3, http2::FIELD_NO_COPY);

}  // namespace

// The fields of a request are there.
void Connection::begin_rest(Call *call, bool has_body) noexcept {
    note_first(call);
    call->is_rest = true;
    call->admitted.store(true, std::memory_order_relaxed);  // the HTTP server looks at the caller
    if (call->head_too_large) {
        refuse_rest(call, 431);
        return;
    }
    if (call->head_lost) {
        refuse_rest(call, 503);
        return;
    }
    StreamHead head;
    try {
        if (!RestStream::read_head(*call, has_body, server_->http()->config.limits, &head)) {
            refuse_rest(call, 400);
            return;
        }
        call->rest = std::make_unique<RestStream>(call, head.head);
    } catch (const std::bad_alloc &) {
        session_.reset(call->stream, http2::REFUSED_STREAM);
        return;
    }
    note_stalled(call, has_body);
    if (server_->http()->connections.lacks_streams())
        server_->free_streams(std::max(stalled.load(std::memory_order_relaxed), 1u), now_);
    call->retain();  // until `RestStream::close`
    if (server_->http()->open_stream(call->rest.get(), head, address, address_length, listener_)) return;
    call->release();
    call->trailed = true;
    session_.reset(call->stream, http2::REFUSED_STREAM);
}

// Answers what the HTTP server does not get to see.
void Connection::refuse_rest(Call *call, uint16_t status) noexcept {
    const char text[] = {static_cast<char>('0' + status / 100), static_cast<char>('0' + status / 10 % 10),
                         static_cast<char>('0' + status % 10), 0};
    note_refused(call, status);
    refuse_http(call, text);
}

// Has the HTTP server's access log and counters tell of a request that the HTTP server does not get to see.
void Connection::note_refused(Call *call, uint16_t status) noexcept {
    call->identify();
    try {
        AccessRecord made{};
        made.status = status;
        made.listener = listener_;
        made.head = RestStream::first_line(*call);
        made.request_id.assign(call->request_id.text, call->request_id.length);
        made.peer = address;
        made.peer_length = address_length;
        server_->http()->answers.note_refused(std::move(made));
    } catch (const std::bad_alloc &) {
        // A line of the access log is not worth a request.
    }
}

// Whether the HTTP server keeps a place for the request until its client sends, or takes, more.
void Connection::note_stalled(Call *call, bool stalls) noexcept {
    if (call->stalls == stalls) return;
    call->stalls = stalls;
    stalled.fetch_add(stalls ? 1 : -1u, std::memory_order_relaxed);
}

// The request has not been run, so that the client may send it again.
void Connection::give_up_body(Call *call) noexcept {
    note_stalled(call, false);
    call->trailed = true;
    call->rest->closed();
    session_.reset(call->stream, http2::REFUSED_STREAM);
}

// Ends requests whose bodies do not come, or whose answers are not taken, the oldest first.
void Connection::free_streams() noexcept {
    uint32_t most = (stalled.load(std::memory_order_relaxed) + 1) / 2;
    for (Call *call = oldest_call(); call && most; call = call->previous) {
        if (!call->stalls || call->trailed) continue;
        if (call->answered ? !call->rest->awaits_room() : !call->rest->awaits_body()) continue;
        server_->count(GRPC_TOO_MANY_CALLS);
        call->answered ? drop_answer(call) : give_up_body(call);
        --most;
    }
}

void Connection::put_rest(Call *call, const unsigned char *data, size_t length) noexcept {
    if (!call->rest->put(data, length)) {
        session_.reset(call->stream, http2::INTERNAL_ERROR);
        return;
    }
    read_rest(call);
}

// Lets the peer send as much more as the HTTP server has read.
void Connection::read_rest(Call *call) noexcept {
    if (call->rest->takes_window()) session_.widen(call->stream, RestStream::WINDOW);
    session_.consume(call->stream, call->rest->take_read());
}

void Connection::answer_rest(Call *call) noexcept {
    const RestStream::Answer found = call->rest->answer();
    if (call->trailed) return;
    if (found.broken) {
        call->trailed = true;
        session_.reset(call->stream, http2::INTERNAL_ERROR);
        return;
    }
    if (found.whole && !found.alone) note_untaken(call);
    if (call->answered) {
        note_stalled(call, found.full);
        session_.resume(call->stream);
        return;
    }
    if (found.interim) session_.interim(call->stream, &STATUS_100);
    if (!found.head) return;
    note_stalled(call, found.full);
    call->answered = true;
    call->answer_ns = call->answer_looked = now_;
    call->trailed = found.alone;
    try {
        SmallVector<http2::Field, 16> fields;
        call->rest->fields(&fields);
        session_.answer(call->stream, fields.data(), fields.size(), !found.alone);
    } catch (const std::bad_alloc &) {
        session_.reset(call->stream, http2::INTERNAL_ERROR);
    }
}

}  // namespace ksrv::grpc
