#include "server/fast_path.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "base/text_writer.hpp"

namespace ksrv {

namespace {

void free_fast_request(Request *freed) noexcept {
    FastRequest *request = static_cast<FastRequest *>(freed);
    HttpServer *server = request->server;
    if (request->block) process_pool().release(request->block);
    if (request->reserved && !request->queue) process_budget().give_back(request->nbytes);
    if (request->answers) request->answers->freed(request);
    request->signature->release();
    request->~FastRequest();
    free(request);
    if (server) server->open_fast_requests.fetch_sub(1, std::memory_order_release);
}

// Called by the timer's thread, or by the thread that cancelled the request; without the GIL.
void end_fast_request(Request *ended) noexcept {
    FastRequest *request = static_cast<FastRequest *>(ended);
    if (request->answers) {
        request->answers->ended(request);
        return;
    }
    Connection *connection = request->server->take_turn(request->turn);
    if (!connection) return;
    if (request->state.load(std::memory_order_acquire) == STATE_CANCELLED) {  // its client is gone
        request->server->close_disconnected(connection);
        return;
    }
    const std::int64_t waited = (request->ended_ns - request->enqueued_ns) / 1000000;
    request->server->answer_late(connection, *request->signature, waited, request->ended_in == STATE_RUNNING);
}

}  // namespace

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
    if (wanted_ns && (!timeout || wanted_ns < timeout)) timeout = wanted_ns;
    if (timeout && timeout < static_cast<std::uint64_t>(NEVER) - now)
        request->deadline_ns = static_cast<std::int64_t>(now + timeout);
}

void fail_fast_request(FastRequest *request) noexcept {
    if (request->answers) {
        request->answers->fail(request);
    } else {
        request->server->fail(request->turn);
    }
}

bool is_fast_request(const Request *request) noexcept { return request->ended == end_fast_request; }

void HttpServer::answer_late(Connection *connection, const ModelSignature &signature, std::int64_t waited_ms,
                       bool running) noexcept {
    char room[4096], fields_room[1024];
    TextWriter body(room, sizeof room), fields(fields_room, sizeof fields_room);
    const std::string &rest = running ? signature.late_running : signature.late_waiting;
    body.put(signature.late_prefix.data(), signature.late_prefix.size());
    body.number(waited_ms);
    body.put(rest.data(), rest.size());
    fields.put(signature.late_fields.data(), signature.late_fields.size());
    fields.put("content-length: ");
    fields.number(static_cast<std::int64_t>(body.length()));
    fields.put("\r\n");
    if (body.full() || fields.full()) {
        answer_prepared(connection, ANSWER_FAILED);
        return;
    }
    if (put_answer(connection, 504, signature.late_status.data(), signature.late_status.size(), fields.text(),
                   fields.length(), body.text(), body.length())) {
        answer(connection, nullptr);
    } else {
        drop(connection);
    }
}

// Gives a message a longer block, with the numbers of its JSON behind the body. False: there is no memory, or
// they are not what the model's inputs ask for.
bool HttpServer::extend_with_numbers(Connection *connection, const ModelSignature &signature,
                                     const FastRequestLayout &layout) noexcept {
    const std::size_t more = layout.length - connection->body.got;
    if (!process_budget().reserve(more, true)) return false;
    Block *const old = connection->body.block;
    Block *made = process_pool().lease(connection->body.offset + layout.length, BACKEND_HEAP);
    if (made) {
        unsigned char *const body = made->data + connection->body.offset;
        memcpy(body, old->data + connection->body.offset, connection->body.got);
        if (read_json_inputs(signature, layout, body)) {
            connection->body.counted += more;
            connection->body.block = made;
            process_pool().release(old);
            return true;
        }
        process_pool().release(made);
    }
    process_budget().give_back(more);
    return false;
}

// Makes a fast-path request of a complete message, which loses its block to it; null where the message is
// not of that kind.
FastRequest *HttpServer::make_fast_request(Connection *connection, ModelSignature *signature,
                                           std::uint64_t now) noexcept {
    FastRequestLayout layout;
    const Head &head = connection->head;
    const unsigned char *body = connection->body.block->data + connection->body.offset;
    const std::size_t json_length = head.has_json_length ? head.json_length : connection->body.got;
    if (!read_fast_request(*signature, body, connection->body.got, json_length, &layout)) return nullptr;
    if (layout.length != connection->body.got && !extend_with_numbers(connection, *signature, layout))
        return nullptr;
    FastRequest *request = new_fast_request(signature, identified_head_bytes(head.length, connection->request_id));
    if (!request) return nullptr;
    put_identified_head(request->head(), connection->buffer, head.length, connection->request_id);
    request->rows = layout.rows;
    request->batch_key = batch_key_of(*signature, layout);
    request->priority = layout.priority;
    request->nbytes = connection->body.counted;
    request->reserved = true;
    connection->body.counted = 0;
    request->body_offset = connection->body.offset;
    request->body_length = connection->body.got;
    request->json_length = json_length;
    set_deadline(request, now, std::min(layout.timeout_us, LONGEST_TIMEOUT_US) * 1000);
    request->layout = std::move(layout);
    request->server = this;
    request->turn = begin_turn(connection);
    request->block = connection->body.block;
    connection->body.block = nullptr;
    open_fast_requests.fetch_add(1, std::memory_order_relaxed);
    return request;
}

// Gives the message its block back, for the general way to answer it.
Turn HttpServer::undo_fast_request(FastRequest *request) noexcept {
    const Turn turn = request->turn;
    turn.connection->body.block = request->block;
    turn.connection->body.counted = request->nbytes;
    request->block = nullptr;
    request->reserved = false;
    request->turn = Turn{};
    release(request);
    return turn;
}

// Puts a complete message into its model's queue, or has it wait for the GIL. False: it is no fast-path
// request, Python shall record it, or the queue refuses it.
bool HttpServer::submit_fast_request(Connection *connection, const ModelRoute &route) noexcept {
    FastRequest *request = make_fast_request(connection, route.signature, unsigned_now_ns());
    if (!request) return false;
    if (route.signature->recorded.chooses()) {
        connection->sampled = true;
        undo_fast_request(request);
        return false;
    }
    count(SERVER_FAST_PATH);
    timers.set(connection->slot, Timers::NONE);
    connection->enter(Phase::run);
    if (route.queue->inline_for_all.load() && request->layout.decodes_quickly()) {
        connection->fast_request = request;
        queue_to_run(connection);
        return true;
    }
    watch(connection, request);
    if (route.queue->push(request) == PUSH_OK) {
        release(request);
        return true;
    }
    unwatch(connection);
    undo_fast_request(request);
    return false;
}

// Takes the fast-path request of a connection that `next_to_run` gave out, and the requests behind it in
// the run queue up to the first that goes to another model.
std::size_t HttpServer::take_fast_requests(Connection *first, FastRequest **out, std::size_t room) noexcept {
    std::size_t count = 0;
    out[count++] = first->fast_request;
    first->fast_request = nullptr;
    ModelSignature *signature = out[0]->signature;
    if (room <= 1) return count;
    const auto joins = [&](Connection *next) {
        return next->fast_request && next->fast_request->signature == signature && !is_cut(next);
    };
    while (count < room) {
        Connection *connection = to_run_.pop_if(joins);
        if (!connection) break;
        out[count++] = connection->fast_request;
        connection->fast_request = nullptr;
    }
    return count;
}

}  // namespace ksrv
