// Sends answers: headers, messages, trailers.
//
// `Streams::answer` runs in the connection's owner after a thread has changed an answer. It gives libnghttp2 the
// headers. When the client's window has room, libnghttp2 asks `offer` how many bytes it may send, and `take` then moves
// them into the outgoing bytes. After the last byte, `offer` adds the trailers. An answer that is complete, but for
// which the window has no room, counts as undelivered.

#include <charconv>
#include <new>

#include "grpc/connection.hpp"
#include "grpc/server.hpp"

namespace ksrv::grpc {

namespace {

template <size_t N, size_t M> http2::Field fixed(const char (&name)[N], const char (&value)[M]) noexcept {
    return field_of(name, N - 1, value, M - 1, http2::FIELD_NO_COPY);
}

// The fields of a header list. Their texts must stay valid until they are submitted.
class Fields {
  public:
    // The head of an answer.
    void add_head(const Call &call, bool decompresses) {
        all_.push_back(fixed(":status", "200"));
        all_.push_back(fixed("content-type", "application/grpc"));
        all_.push_back(decompresses ? fixed("grpc-accept-encoding", "identity, deflate, gzip")
                                    : fixed("grpc-accept-encoding", "identity"));
        add_id(call);
    }

    // The head of an answer to a request that is not gRPC.
    void add_http_head(const Call &call, bool has_body) {
        all_.push_back(field_of(":status", 7, code_of(call), 3, 0));
        if (has_body) all_.push_back(fixed("content-type", "application/json"));
    }

    // The end of a call.
    void add_end(const Call &call, bool has_id) {
        const Outcome &outcome = call.outcome;
        if (outcome.status == OK) {
            all_.push_back(fixed("grpc-status", "0"));
        } else {
            const char *code = code_of(call);
            all_.push_back(field_of("grpc-status", 11, code, strlen(code), 0));
            text_ = percent_encoded(outcome.text.data(), outcome.text.size());
            all_.push_back(field_of("grpc-message", 12, text_.data(), text_.size(), 0));
            if (!has_id) add_id(call);
        }
        for (const auto &[name, value] : outcome.metadata)
            all_.push_back(field_of(name.data(), name.size(), value.data(), value.size(), 0));
    }

    const http2::Field *data() const noexcept { return all_.data(); }
    size_t size() const noexcept { return all_.size(); }

  private:
    void add_id(const Call &call) {
        const RequestId &id = call.head.request_id;
        all_.push_back(field_of("x-request-id", 12, id.text, id.length, http2::FIELD_NO_INDEX));
    }
    const char *code_of(const Call &call) noexcept {
        *std::to_chars(code_, code_ + sizeof code_ - 1, call.outcome.status).ptr = 0;
        return code_;
    }

    char code_[12];
    std::string text_;
    SmallVector<http2::Field, 12> all_;
};

// Whether the answer is plain HTTP, because the request is not gRPC.
bool is_http(const Call &call) noexcept { return call.outcome.status >= HTTP_STATUS; }

}  // namespace

void Streams::answer(Call *call) noexcept {
    ASSERT_OWNED(connection_.owner);
    Life life;
    bool empty;
    {
        std::lock_guard<std::mutex> guard(call->lock);
        life = call->life;
        empty = call->out.empty();
    }
    // From here on the server is done with the call, even if the client does not read the answer.
    if (life != Life::open) stop_receiving(call);
    if (call->answering >= Answering::trailers) return;
    if (life == Life::cancelled) {
        reset(call, http2::CANCEL);
        return;
    }
    const bool finished = life == Life::finished;
    if (finished && !empty) note_undelivered(call);
    if (call->answering == Answering::body) {
        session.resume(call->stream);
    } else if (finished || !empty) {
        begin_answer(call, empty);
    }
}

// Submits the headers. If the answer has no message, they include the trailers (the "trailers-only" form of gRPC).
void Streams::begin_answer(Call *call, bool empty) noexcept {
    call->sending.looked_ns = connection_.now();
    call->enter(empty ? Answering::trailers : Answering::body);
    Fields fields;
    try {
        if (is_http(*call)) {
            fields.add_http_head(*call, !empty);
        } else {
            fields.add_head(*call, server_.config.decompress);
            if (empty) fields.add_end(*call, true);
        }
        session.answer(call->stream, fields.data(), fields.size(), !empty);
    } catch (const std::bad_alloc &) {
        session.reset(call->stream, http2::INTERNAL_ERROR);
    }
}

void Streams::reset(Call *call, uint32_t error) noexcept {
    call->enter(Answering::reset);
    session.reset(call->stream, error);
}

size_t Streams::offer(Call *call, size_t most, Following *following) noexcept {
    size_t offered;
    bool is_end;
    {
        std::lock_guard<std::mutex> guard(call->lock);
        offered = std::min(most, call->out.bytes());
        is_end = call->life == Life::finished && offered == call->out.bytes();
    }
    if (!is_end || call->answering != Answering::body) return offered;
    call->enter(Answering::trailers);
    note_delivered(call);
    *following = is_http(*call) ? Following::end : Following::trailers;
    if (is_http(*call)) return offered;
    try {
        Fields fields;
        fields.add_end(*call, false);
        session.trailers(call->stream, fields.data(), fields.size());
    } catch (const std::bad_alloc &) {
        session.reset(call->stream, http2::INTERNAL_ERROR);
    }
    return offered;
}

// RST_STREAM tells a peer that still sends to stop (RFC 9113 8.1).
void Streams::answer_over(Call *call) noexcept {
    if (!call->peer_over) session.reset(call->stream, http2::NO_ERROR);
}

bool Streams::take(Call *call, size_t length, http2::OutgoingBytes *out) noexcept {
    call->sending.sent += length;
    std::lock_guard<std::mutex> guard(call->lock);
    call->changed.notify_all();
    return call->out.take(length, out);
}

// ---- answers that clients do not read -------------------------------------------------------

// The answer is complete, but its client has not taken all of it.
void Streams::note_undelivered(Call *call) noexcept {
    if (call->sending.whole_ns) return;
    call->sending.whole_ns = connection_.now();
    counts.undelivered.fetch_add(1, std::memory_order_relaxed);
    server_.undelivered.fetch_add(1, std::memory_order_relaxed);
}

void Streams::note_delivered(Call *call) noexcept {
    if (!call->sending.whole_ns) return;
    call->sending.whole_ns = 0;
    counts.undelivered.fetch_sub(1, std::memory_order_relaxed);
    server_.undelivered.fetch_sub(1, std::memory_order_relaxed);
}

void Streams::end_undelivered() noexcept {
    // Drops half of the undelivered answers, the oldest first. Older calls come later in the list; `previous` leads
    // from the oldest to the newest.
    const uint32_t left = counts.undelivered.load(std::memory_order_relaxed) / 2;
    for (Call *call = oldest(); call && counts.undelivered.load(std::memory_order_relaxed) > left;
         call = call->links.previous) {
        if (!call->sending.whole_ns) continue;
        server_.count(ServerCounter::calls);
        drop_answer(call);
    }
}

// gRPC clients read this error code as RESOURCE_EXHAUSTED.
void Streams::drop_answer(Call *call) noexcept {
    note_delivered(call);
    {
        std::lock_guard<std::mutex> guard(call->lock);
        call->out.clear();
        call->outcome.status = RESOURCE_EXHAUSTED;
    }
    reset(call, http2::ENHANCE_YOUR_CALM);
}

}  // namespace ksrv::grpc
