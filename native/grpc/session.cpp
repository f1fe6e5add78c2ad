// The callbacks of libnghttp2, and the calls into it. Each callback finds the call of its stream (`stream_of`) and
// passes the event to `Streams`. Callbacks that cost work also `spend` from the peer's allowance.

#include "grpc/session.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>

#include "grpc/server.hpp"
#include "grpc/streams.hpp"

namespace ksrv::grpc {

namespace {

constexpr size_t FRAME_HEAD = 9, LONGEST_FRAME = 256u << 10;  // bytes
constexpr uint32_t LIBRARY_LIMIT = 100'000;  // frames, for the protection that the library has since 1.57
constexpr int32_t CONNECTION_WINDOW = 16 << 20;

Session *self_of(void *user) noexcept { return static_cast<Session *>(user); }

// The cost of a frame, or 0 if the peer has earned a free frame.
uint64_t cost_of(uint64_t cost, uint32_t *free) noexcept {
    if (*free == 0) return cost;
    --*free;
    return 0;
}

}  // namespace

// Makes what all sessions share. False if memory is short: the next session tries again.
bool Session::make_shared() noexcept {
    static std::mutex mutex;
    std::lock_guard<std::mutex> guard(mutex);
    if (!options_ && nghttp2.option_new(&options_) == 0) {
        nghttp2.option_set_no_auto_window_update(options_, 1);
        // The library's limits are higher than the allowance here, so that the allowance is used up first.
        for (auto *limit : {nghttp2.option_set_stream_reset_rate_limit, nghttp2.option_set_glitch_rate_limit})
            if (limit) limit(options_, LIBRARY_LIMIT, LIBRARY_LIMIT);
    }
    if (!callbacks_ && nghttp2.session_callbacks_new(&callbacks_) == 0) {
        nghttp2.session_callbacks_set_on_begin_headers_callback(callbacks_, on_begin_headers);
        nghttp2.session_callbacks_set_on_header_callback(callbacks_, on_header);
        nghttp2.session_callbacks_set_on_begin_frame_callback(callbacks_, on_begin_frame);
        nghttp2.session_callbacks_set_on_frame_recv_callback(callbacks_, on_frame);
        nghttp2.session_callbacks_set_on_frame_send_callback(callbacks_, on_sent);
        nghttp2.session_callbacks_set_on_data_chunk_recv_callback(callbacks_, on_data);
        nghttp2.session_callbacks_set_on_stream_close_callback(callbacks_, on_close);
        nghttp2.session_callbacks_set_send_data_callback(callbacks_, on_send_data);
        nghttp2.session_callbacks_set_data_source_read_length_callback(callbacks_, read_length);
    }
    return options_ && callbacks_;
}

Session::~Session() {
    if (session_) nghttp2.session_del(session_);
}

bool Session::open(const ServerConfig &config) noexcept {
    most_list_ = config.head;
    if (!library() || !make_shared() || nghttp2.session_server_new2(&session_, callbacks_, this, options_) != 0)
        return false;
    const Setting settings[] = {
        {SETTING_MAX_STREAMS, config.streams},
        // Before Python has checked a token, a caller may send no more than a small message.
        {SETTING_WINDOW, config.checks_callers ? 65535 : 1u << 20},
        {SETTING_FRAME_SIZE, 1u << 20},
        {SETTING_HEADER_LIST, config.head},
    };
    return nghttp2.submit_settings(session_, 0, settings, sizeof settings / sizeof *settings) == 0 &&
           nghttp2.session_set_local_window_size(session_, 0, 0, CONNECTION_WINDOW) == 0;
}

bool Session::receive(const unsigned char *data, size_t length, uint64_t now) noexcept {
    now_ = now;
    if (flooded_) {  // by the faults for which streams were reset
        go_away(ENHANCE_YOUR_CALM, "too many streams were reset for a fault");
        return false;
    }
    got_data_ = false;
    const ssize_t taken = nghttp2.session_mem_recv(session_, data, length);
    // The library skips data without a callback if it exceeds a stream's content-length, or follows a pending reset.
    // How much of the frame is left is then unknown.
    if (!got_data_) data_left_ = 0;
    if (flooded_) {
        go_away(ENHANCE_YOUR_CALM, fault_);
        return false;
    }
    if (taken < 0 && taken != RESULT_NO_MEMORY && taken != RESULT_BAD_PREFACE && taken != RESULT_FAILURE) {
        flooded_ = true;  // a limit of the library
        go_away(ENHANCE_YOUR_CALM, fault_);
    }
    return taken == static_cast<ssize_t>(length) && !failed_;
}

bool Session::produce(size_t most, size_t most_copied) noexcept {
    try {
        while (!failed_ && out_->length() < most && out_->copied() < most_copied) {
            const uint8_t *data = nullptr;
            const size_t before = out_->length();
            const ssize_t made = nghttp2.session_mem_send(session_, &data);
            if (made < 0) return false;
            if (made == 0 && out_->length() == before) break;
            out_->copy(data, static_cast<size_t>(made));
        }
    } catch (const std::bad_alloc &) {
        return false;
    }
    return !failed_;
}

void Session::answer(int32_t stream_id, const Field *fields, size_t count, bool has_body) noexcept {
    DataProvider provider{};
    provider.source.ptr = stream_of(stream_id);
    provider.read = read_data;
    if (nghttp2.submit_response(session_, stream_id, fields, count, has_body ? &provider : nullptr) != 0)
        reset(stream_id, INTERNAL_ERROR);
}

void Session::trailers(int32_t stream_id, const Field *fields, size_t count) noexcept {
    if (nghttp2.submit_trailer(session_, stream_id, fields, count) != 0) reset(stream_id, INTERNAL_ERROR);
}

void Session::reset(int32_t stream_id, uint32_t error) noexcept {
    note(nghttp2.submit_rst_stream(session_, 0, stream_id, error));
}

void Session::consume(int32_t stream_id, size_t length) noexcept {
    if (length) note(nghttp2.session_consume_stream(session_, stream_id, length));
}

void Session::widen(int32_t stream_id, size_t window) noexcept {
    const int32_t most = static_cast<int32_t>(std::min<size_t>(window, INT32_MAX));
    if (nghttp2.session_get_stream_local_window_size(session_, stream_id) < most)
        note(nghttp2.session_set_local_window_size(session_, 0, stream_id, most));
}

void Session::ping() noexcept {
    static const uint8_t OPAQUE[8] = {'k', 's', 'r', 'v', 0, 0, 0, 1};
    note(nghttp2.submit_ping(session_, 0, OPAQUE));
}

void Session::go_away(uint32_t error, const char *why) noexcept {
    note(nghttp2.submit_goaway(session_, 0, nghttp2.session_get_last_proc_stream_id(session_), error,
                               reinterpret_cast<const uint8_t *>(why), strlen(why)));
}

// The stream of an id, or null. Most callbacks are about the same stream as the previous callback.
Call *Session::stream_of(int32_t stream_id) noexcept {
    if (last_id_ != stream_id) {
        last_id_ = stream_id;
        last_stream_ = static_cast<Call *>(nghttp2.session_get_stream_user_data(session_, stream_id));
    }
    return last_stream_;
}

// Takes units from the peer's allowance, which grows by A_SECOND units per second up to ALLOWANCE. False if it is used
// up.
bool Session::spend(uint64_t cost) noexcept {
    constexpr uint64_t UNIT_NS = 1'000'000'000u / A_SECOND;
    if (now_ > allowed_at_) {
        const uint64_t grown = (now_ - allowed_at_) / UNIT_NS;
        allowance_ = std::min(ALLOWANCE, allowance_ + grown);
        allowed_at_ = allowance_ == ALLOWANCE ? now_ : allowed_at_ + grown * UNIT_NS;
    }
    if (allowance_ < cost) {
        flooded_ = true;
        return false;
    }
    allowance_ -= cost;
    return true;
}

int Session::on_begin_headers(NgSession *session, const FrameHead *frame, void *user) {
    Session *self = self_of(user);
    self->list_bytes_ = 0;
    if (self->stream_of(frame->stream_id)) {  // trailers, for which `on_begin_frame` charged a new stream: refund
        self->allowance_ = std::min(ALLOWANCE, self->allowance_ + REFUSED_STREAM_COST);
        return 0;
    }
    Call *stream = self->streams_->opened(frame->stream_id);
    if (!stream) return RESULT_STREAM_FAILURE;
    self->allowance_ = std::min(ALLOWANCE, self->allowance_ + REFUSED_STREAM_COST);  // the stream is accepted: refund
    nghttp2.session_set_stream_user_data(session, frame->stream_id, stream);
    self->last_id_ = frame->stream_id;
    self->last_stream_ = stream;
    return 0;
}

int Session::on_header(NgSession *, const FrameHead *frame, const uint8_t *name, size_t name_length,
                       const uint8_t *value, size_t value_length, uint8_t, void *user) {
    Session *self = self_of(user);
    Call *stream = self->stream_of(frame->stream_id);
    const size_t most = self->most_list_, before = std::max(self->list_bytes_, most);
    self->list_bytes_ += name_length + value_length + FIELD_BYTES;
    if (self->list_bytes_ <= most) {
        if (stream)
            self->streams_->field(stream, {reinterpret_cast<const char *>(name), name_length},
                                  {reinterpret_cast<const char *>(value), value_length});
        return 0;
    }
    // The list is above its limit: its fields are dropped, and their bytes cost units.
    if (!self->spend(self->list_bytes_ / BYTES_OF_UNIT - before / BYTES_OF_UNIT)) return RESULT_FAILURE;
    if (self->list_bytes_ <= MOST_LISTS * most) return 0;
    self->reset(frame->stream_id, ENHANCE_YOUR_CALM);  // now, because the library would reset with INTERNAL_ERROR
    return self->spend(REFUSED_STREAM_COST) ? RESULT_STREAM_FAILURE : RESULT_FAILURE;
}

// Counts the encoded bytes of a header block before they are decoded, because blocks of ended streams are decoded as
// well.
bool Session::take_block(size_t length) noexcept {
    block_bytes_ += length;
    if (block_bytes_ <= MOST_LISTS * most_list_) return true;
    flooded_ = true;
    fault_ = "a header block is far above the limit, SETTINGS_MAX_HEADER_LIST_SIZE";
    return false;
}

// Called with the head of each frame, before its content is read: charges what the frame costs.
int Session::on_begin_frame(NgSession *, const FrameHead *frame, void *user) {
    Session *self = self_of(user);
    uint64_t cost = 0;
    self->data_left_ = 0;  // the previous frame is complete
    self->got_data_ = false;
    switch (frame->type) {
    case FRAME_DATA: {
        Call *stream = self->stream_of(frame->stream_id);
        if (frame->length == 0 && !(frame->flags & FLAG_END_STREAM)) cost = 1;
        if (!(frame->flags & FLAG_PADDED)) {
            self->data_stream_ = stream;
            self->data_left_ = stream ? frame->length : 0;
        }
        break;
    }
    case FRAME_HEADERS:
        self->block_bytes_ = 0;
        if (!self->take_block(frame->length)) return RESULT_FAILURE;
        cost = REFUSED_STREAM_COST;  // refunded if the stream is accepted
        break;
    case FRAME_PRIORITY:
        cost = 1;
        break;
    case FRAME_PING:
        if (frame->flags & FLAG_ACK) break;
        cost = cost_of(1, &self->free_pings_);
        break;
    case FRAME_SETTINGS:
        cost = frame->flags & FLAG_ACK ? 0 : SETTINGS_COST;
        break;
    case FRAME_RST_STREAM: {
        Call *stream = self->stream_of(frame->stream_id);
        if (stream && self->streams_->has_lived(*stream)) break;
        cost = cost_of(EARLY_RESET_COST, &self->free_resets_);
        break;
    }
    case FRAME_CONTINUATION:
        if (!self->take_block(frame->length)) return RESULT_FAILURE;
        cost = CONTINUATION_COST;
        break;
    default:
        break;
    }
    if (cost && !self->spend(cost)) return RESULT_FAILURE;
    return 0;
}

int Session::on_frame(NgSession *, const FrameHead *frame, void *user) {
    Session *self = self_of(user);
    if (frame->type != FRAME_HEADERS && frame->type != FRAME_DATA) return 0;
    Call *stream = self->stream_of(frame->stream_id);
    if (!stream) return 0;
    const bool over = frame->flags & FLAG_END_STREAM;
    if (frame->type == FRAME_HEADERS) self->streams_->fields_over(stream, self->list_bytes_ <= self->most_list_);
    if (over) self->streams_->peer_over(stream);
    return 0;
}

int Session::on_sent(NgSession *, const FrameHead *frame, void *user) {
    Session *self = self_of(user);
    if (frame->type == FRAME_RST_STREAM) {
        const uint32_t error = reinterpret_cast<const ResetFrame *>(frame)->error;
        const bool fault = error == PROTOCOL_ERROR || error == FLOW_CONTROL_ERROR || error == STREAM_CLOSED ||
                           error == FRAME_SIZE_ERROR;
        if (fault) self->spend(REFUSED_STREAM_COST);  // if it is used up, `receive` closes the connection
        // The peer may have sent a reset of the same stream before it gets this reset.
        if (error == REFUSED_STREAM || error == CANCEL) self->forgive_resets(1);
    }
    // grpc-go measures bandwidth with a PING after a DATA frame, one at a time, while answers arrive.
    if (frame->type == FRAME_DATA && self->free_pings_ < MOST_FREE) ++self->free_pings_;
    const bool answers = frame->type == FRAME_HEADERS || frame->type == FRAME_DATA;
    if (!answers || !(frame->flags & FLAG_END_STREAM)) return 0;
    self->forgive_resets(1);  // for the same reason: the end of the answer may cross the peer's reset
    if (Call *stream = self->stream_of(frame->stream_id)) self->streams_->answer_over(stream);
    return 0;
}

int Session::on_data(NgSession *, uint8_t, int32_t stream_id, const uint8_t *data, size_t length,
                     void *user) {
    Session *self = self_of(user);
    self->got_data_ = true;
    self->data_left_ = self->data_left_ > length ? self->data_left_ - length : 0;
    self->consume_connection(length);
    if (Call *stream = self->stream_of(stream_id))
        self->streams_->data(stream, data, length);
    return 0;
}

int Session::on_close(NgSession *session, int32_t stream_id, uint32_t error, void *user) {
    Session *self = self_of(user);
    Call *stream = self->stream_of(stream_id);
    if (!stream) return 0;
    if (self->data_stream_ == stream) {
        self->data_stream_ = nullptr;
        self->data_left_ = 0;
    }
    nghttp2.session_set_stream_user_data(session, stream_id, nullptr);
    self->last_stream_ = nullptr;
    self->streams_->closed(stream, error);
    return 0;
}

ssize_t Session::read_length(NgSession *, uint8_t, int32_t, int32_t connection_window, int32_t stream_window,
                             uint32_t frame_size, void *) {
    const int32_t window = std::min(connection_window, stream_window);
    return std::min<ssize_t>(window, std::min<ssize_t>(frame_size, LONGEST_FRAME));
}

// Asks for the next bytes of an answer. DATA_NO_COPY: the library writes the frame's head, and `on_send_data` the
// bytes.
ssize_t Session::read_data(NgSession *, int32_t, uint8_t *, size_t length, uint32_t *flags, DataSource *source,
                           void *user) {
    Following following = Following::more;
    const size_t offered = self_of(user)->streams_->offer(static_cast<Call *>(source->ptr), length, &following);
    if (following != Following::more) *flags |= DATA_EOF;
    if (following == Following::trailers) *flags |= DATA_NO_END_STREAM;
    if (offered == 0) return following != Following::more ? 0 : RESULT_DEFERRED;
    *flags |= DATA_NO_COPY;
    return static_cast<ssize_t>(offered);
}

int Session::on_send_data(NgSession *, const FrameHead *, const uint8_t *head, size_t length,
                          DataSource *source, void *user) {
    Session *self = self_of(user);
    try {
        self->out_->copy(head, FRAME_HEAD);
    } catch (const std::bad_alloc &) {
        return RESULT_FAILURE;
    }
    return self->streams_->take(static_cast<Call *>(source->ptr), length, self->out_) ? 0 : RESULT_FAILURE;
}

}  // namespace ksrv::grpc
