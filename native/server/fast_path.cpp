#include "server/fast_path.hpp"

#include <algorithm>
#include <new>

#include "base/text_writer.hpp"

namespace ksrv {

namespace {

// About thirty years; more would not fit a clock. `ksrv.protocol.parameters` has the same bound.
constexpr std::uint64_t LONGEST_TIMEOUT_US = 1000000000ull * 1000000ull;

void free_plain(Entry *freed) noexcept {
    PlainEntry *entry = static_cast<PlainEntry *>(freed);
    HttpServer *server = entry->server;
    if (entry->block) process_arena().release(entry->block);
    if (entry->reserved && !entry->queue) process_budget().give_back(entry->nbytes);
    entry->signature->release();
    entry->~PlainEntry();
    free(entry);
    server->open_plain.fetch_sub(1, std::memory_order_release);
}

// Called by the timer's thread, or by whoever cancelled the entry; without the GIL.
void end_plain(Entry *ended) noexcept {
    PlainEntry *entry = static_cast<PlainEntry *>(ended);
    Connection *connection = entry->server->take_turn(entry->turn);
    if (!connection) return;
    if (entry->state.load(std::memory_order_acquire) == STATE_CANCELLED) {  // its client is gone
        entry->server->forsake(connection);
        return;
    }
    const std::int64_t waited = (entry->ended_ns - entry->enqueued_ns) / 1000000;
    entry->server->answer_late(connection, *entry->signature, waited, entry->ended_in == STATE_RUNNING);
}

}  // namespace

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
        answer_ready(connection, READY_FAILED);
        return;
    }
    if (put_answer(connection, 504, signature.late_status.data(), signature.late_status.size(), fields.text(),
                   fields.length(), body.text(), body.length())) {
        answer(connection, nullptr);
    } else {
        drop(connection);
    }
}

// An entry over a complete message that is plain, or null. It holds the message's block then.
PlainEntry *HttpServer::plain_entry(Connection *connection, ModelSignature *signature, std::uint64_t now) noexcept {
    PlainRequest request;
    const Head &head = connection->head;
    const unsigned char *body = connection->block->data + connection->body_offset;
    if (!head.has_json_length ||
        !read_plain(*signature, body, connection->body_got, head.json_length, &request))
        return nullptr;
    void *room = malloc(sizeof(PlainEntry) + head.length);
    if (!room) return nullptr;
    PlainEntry *entry = new (room) PlainEntry;
    memcpy(entry->head(), connection->buffer, head.length);
    entry->head_length = head.length;
    entry->request = request;
    entry->rows = request.rows;
    entry->nbytes = connection->counted;
    entry->reserved = true;
    connection->counted = 0;
    entry->body_offset = connection->body_offset;
    entry->body_length = connection->body_got;
    entry->json_length = head.json_length;
    std::uint64_t patience = static_cast<std::uint64_t>(signature->timeout_ns);
    const std::uint64_t wanted = std::min(request.timeout_us, LONGEST_TIMEOUT_US);
    if (wanted && (!patience || wanted < patience / 1000)) patience = wanted * 1000;
    if (patience && patience < static_cast<std::uint64_t>(NEVER) - now)
        entry->deadline_ns = static_cast<std::int64_t>(now + patience);
    entry->taken = signature->taken;
    entry->answered = signature->answered;
    entry->ended = end_plain;
    entry->freed = free_plain;
    entry->signature = signature;
    signature->retain();
    entry->server = this;
    entry->turn = begin_turn(connection);
    entry->block = connection->block;
    connection->block = nullptr;
    open_plain.fetch_add(1, std::memory_order_relaxed);
    return entry;
}

// Gives the message its block back, for the general way to answer it.
Turn HttpServer::undo_plain(PlainEntry *entry) noexcept {
    const Turn turn = entry->turn;
    turn.connection->block = entry->block;
    turn.connection->counted = entry->nbytes;
    entry->block = nullptr;
    entry->reserved = false;
    entry->turn = Turn{};
    release(entry);
    return turn;
}

// Puts a plain message into its queue, or has it wait for the GIL. True: it is on its way.
bool HttpServer::submit_plain(Connection *connection, const ModelRoute &route) noexcept {
    PlainEntry *entry = plain_entry(connection, route.signature, unsigned_now_ns());
    if (!entry) return false;
    count(SERVER_FAST_PATH);
    deadlines.set(connection->slot, Deadlines::NONE);
    connection->phase.store(Phase::run, std::memory_order_relaxed);
    if (route.queue->may_lend.load()) {
        connection->plain = entry;
        queue_to_run(connection);
        return true;
    }
    watch(connection, entry);
    if (route.queue->push(entry) == PUSH_OK) {
        release(entry);
        return true;
    }
    unwatch(connection);
    undo_plain(entry);
    return false;
}

// Takes the plain entry of a connection that `next_to_run` gave out, and those behind it that go to the
// same model, as long as nothing else stands between them.
std::size_t HttpServer::take_plain(Connection *first, PlainEntry **out, std::size_t room) noexcept {
    std::size_t count = 0;
    out[count++] = first->plain;
    first->plain = nullptr;
    ModelSignature *signature = out[0]->signature;
    if (room <= 1) return count;
    std::lock_guard<std::mutex> guard(run_mutex_);
    while (count < room && run_first_ && run_first_->plain && run_first_->plain->signature == signature) {
        Connection *connection = run_first_;
        run_first_ = connection->next;
        if (!run_first_) run_last_ = nullptr;
        connection->next = nullptr;
        to_run_.fetch_sub(1, std::memory_order_relaxed);
        out[count++] = connection->plain;
        connection->plain = nullptr;
    }
    return count;
}

}  // namespace ksrv
