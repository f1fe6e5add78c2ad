#include "server/fast_path.hpp"

#include <algorithm>
#include <cstdio>
#include <new>
#include <utility>

#include "base/text_writer.hpp"
#include "queue/request_queue.hpp"

namespace ksrv {

namespace {

void free_fast_request(Request *freed) noexcept {
    FastRequest *request = static_cast<FastRequest *>(freed);
    AnswerSender *sender = request->sender;
    if (request->block) process_pool().release(request->block);
    // A queue that has accepted the request gives its bytes back itself.
    if (request->reserved && !request->queue) process_budget().give_back(request->nbytes);
    if (request->answers) request->answers->freed(request);
    request->signature->release();
    request->~FastRequest();
    free(request);
    // Last, because the server, which owns the sender, may be deleted once no request is open.
    if (sender) sender->open_fast_requests.fetch_sub(1, std::memory_order_release);
}

// Answers 504, with the time that the request has waited.
void send_late(AnswerSender *sender, Connection *connection, const FastRequest &request) noexcept {
    static constexpr char line[] = "504 Gateway Timeout";
    char text[LATE_BYTES], body_room[LATE_BYTES + 32], fields_room[1024];
    TextWriter body(body_room, sizeof body_room), fields(fields_room, sizeof fields_room);
    const std::string &model_fields = request.signature->late_fields;
    body.put("{\"error\":");
    bool fits = body.quoted(text, put_late_text(request, text));
    body.put("}");
    fields.put(model_fields.data(), model_fields.size());
    fields.put("content-length: ");
    fields.number(static_cast<std::int64_t>(body.length()));
    fields.put("\r\n");
    fits = fits && !body.full() && !fields.full();
    if (fits && sender->put(connection, 504, line, sizeof line - 1, fields.text(), fields.length(), body.text(),
                            body.length())) {
        sender->send(connection, nullptr);
    } else {
        sender->send_prepared(connection, ANSWER_FAILED);
    }
}

// Called without the GIL by the timer's thread, or by the thread that cancelled the request.
void end_fast_request(Request *ended) noexcept {
    FastRequest *request = static_cast<FastRequest *>(ended);
    if (request->answers) {
        request->answers->ended(request);
        return;
    }
    AnswerSender *sender = request->sender;
    Connection *connection = sender->take_turn(request->turn);
    if (!connection) return;
    if (request->state.load(std::memory_order_acquire) == STATE_CANCELLED) {
        sender->connections().drop(connection);
    } else {
        send_late(sender, connection, *request);
    }
}

}  // namespace

bool extend_body(const ModelSignature &signature, const FastRequestLayout &layout, std::size_t offset,
                 std::size_t length, Block **block, std::uint64_t *counted) noexcept {
    const std::size_t more = layout.length - length;
    if (length > signature.json_limit) return false;
    if (!process_budget().reserve(more, true)) return false;  // true: as a small request
    if (Block *made = process_pool().lease(offset + layout.length, BACKEND_HEAP)) {
        unsigned char *const contents = made->data + offset;
        memcpy(contents, (*block)->data + offset, length);
        if (copy_inputs(signature, layout, contents)) {
            *counted += more;
            process_pool().release(std::exchange(*block, made));
            return true;
        }
        process_pool().release(made);
    }
    process_budget().give_back(more);
    return false;
}

FastRequest *new_fast_request(ModelSignature *signature, std::size_t head_length) noexcept {
    void *room = malloc(sizeof(FastRequest) + head_length);
    if (!room) return nullptr;
    FastRequest *request = new (room) FastRequest;
    request->head_length = head_length;
    request->taken = signature->taken;
    request->answered = signature->answered;
    request->ended = end_fast_request;
    request->freed = free_fast_request;
    request->signature = signature;
    signature->retain();
    return request;
}

void set_deadline(FastRequest *request, std::uint64_t now, std::uint64_t wanted_ns) noexcept {
    std::uint64_t timeout = static_cast<std::uint64_t>(request->signature->timeout_ns);
    if (wanted_ns) request->client_deadline_ns = static_cast<std::int64_t>(now + wanted_ns);
    if (wanted_ns && (!timeout || wanted_ns < timeout)) timeout = wanted_ns;
    if (timeout && timeout < static_cast<std::uint64_t>(NEVER) - now)
        request->deadline_ns = static_cast<std::int64_t>(now + timeout);
}

std::size_t put_late_text(const FastRequest &request, char (&text)[LATE_BYTES]) noexcept {
    const ModelSignature &signature = *request.signature;
    const std::string &form = request.ended_in == STATE_RUNNING ? signature.late_running : signature.late_waiting;
    const long long waited = (request.ended_ns - request.enqueued_ns) / 1'000'000;
    const int length = snprintf(text, sizeof text, form.c_str(), waited);
    return std::min(static_cast<std::size_t>(length), sizeof text - 1);
}

void fail_fast_request(FastRequest *request) noexcept {
    if (request->answers) {
        request->answers->fail(request);
    } else {
        request->sender->fail(request->turn);
    }
}

bool is_fast_request(const Request *request) noexcept { return request->ended == end_fast_request; }

FastRequest *make_fast_request(Connection *connection, ModelSignature *signature, const PlainForm *plain,
                               AnswerSender *sender, std::uint64_t now) noexcept {
    FastRequestLayout layout;
    const Head &head = connection->head;
    IncomingBody &body = connection->body;
    const std::size_t json_length = head.has_json_length ? head.json_length : body.got;
    if (!(plain ? read_plain_request(*plain, *signature, body.data(), body.got, &layout)
                : read_fast_request(*signature, body.data(), body.got, json_length, &layout)))
        return nullptr;
    if (layout.length != body.got &&
        !extend_body(*signature, layout, body.offset, body.got, &body.block, &body.counted))
        return nullptr;
    FastRequest *request = new_fast_request(signature, identified_head_bytes(head.length, connection->request_id));
    if (!request) return nullptr;
    put_identified_head(request->head(), connection->buffer, head.length, connection->request_id);
    request->rows = layout.rows;
    request->batch_key = batch_key_of(*signature, layout);
    request->priority = layout.priority;
    request->nbytes = body.take_counted();
    request->reserved = true;
    request->body_offset = body.offset;
    request->body_length = body.got;
    request->json_length = json_length;
    set_deadline(request, now, std::min(layout.timeout_us, LONGEST_TIMEOUT_US) * 1000);
    request->layout = std::move(layout);
    request->sender = sender;
    request->turn = connection->begin_turn();
    request->block = std::exchange(body.block, nullptr);
    sender->open_fast_requests.fetch_add(1, std::memory_order_relaxed);
    return request;
}

Turn undo_fast_request(FastRequest *request) noexcept {
    const Turn turn = request->turn;
    IncomingBody &body = turn.connection->body;
    body.block = std::exchange(request->block, nullptr);
    body.counted = request->nbytes;
    request->reserved = false;
    request->turn = Turn{};
    release(request);
    return turn;
}

}  // namespace ksrv
