// Makes and sends answers, and then closes their connections or continues with them.
//
// Strategy: the thread that answers sends as much as the socket takes, and gives the connection to the event loop for
// the rest. A message that the engine has is answered once: a thread must first take its turn (`take_turn`).
//
// The HTTP server owns the sender, and the sender calls the server's HttpConnections. Any thread may answer on a
// connection that the thread owns. Data that threads share is constant once connections arrive, or atomic; the log has
// a lock.

#pragma once

#include <atomic>
#include <cstdint>

#include "base/replaceable.hpp"
#include "http/prepared_answer.hpp"
#include "server/access_log.hpp"
#include "server/http_connections.hpp"

namespace ksrv {

class AnswerSender {
  public:
    AnswerSender(HttpConnections *connections, const HttpServerConfig *config, ServerCounters *counts) noexcept
        : connections_(connections), config_(config), counts_(counts) {}

    HttpConnections &connections() const noexcept { return *connections_; }

    // The connection of a message, for the caller to answer or drop. Null, and counted, if it was answered before.
    Connection *take_turn(const Turn &turn) noexcept;
    void fail(const Turn &turn) noexcept;  // answers 500, unless the message was answered before

    // Renders an answer into `connection->out`: status line, Server, Date, Connection, the request's id and `fields`,
    // in gunicorn's order, and then a copy of `body`. The caller may add `parts` further parts. `line` is the status
    // with its reason, such as "200 OK". `fields` ends with CRLF or is empty. False if memory is short.
    bool put(Connection *connection, uint16_t status, const char *line, size_t line_length, const char *fields,
             size_t fields_length, const char *body, size_t body_length, int parts = 1) noexcept;
    // Renders a prepared answer, without its body for HEAD.
    bool put_prepared(Connection *connection, const PreparedAnswer &made) noexcept;
    bool put_health(Connection *connection) noexcept;
    // Counts an answer's bytes in the memory budget, and no longer its message's bytes. False if the budget does not
    // allow them.
    bool reserve(Connection *connection, uint64_t nbytes) noexcept;

    // Sends `connection->out`. True if all of it was sent: the caller must release `owners`. False if the socket is
    // full: the server keeps them. In both cases the caller no longer owns the connection.
    bool send(Connection *connection, Owners *owners) noexcept;
    void send_prepared(Connection *connection, PreparedAnswerIndex which) noexcept;
    void send_prepared(Connection *connection, const PreparedAnswer &made) noexcept;
    // Answers a message whose rest is not read, and closes the connection.
    void refuse(Connection *connection, const PreparedAnswer &made, ServerCounter counter) noexcept;
    void refuse(Connection *connection, PreparedAnswerIndex which, ServerCounter counter) noexcept {
        refuse(connection, prepared[which], counter);
    }
    // Sends `connection->out`, which is a piece of an answer of unknown length. The thread that makes the pieces owns
    // the connection, and waits here until the socket has taken the piece: so at most one piece of a stream is in
    // memory. False if the peer has gone or reads too slowly, or the server stops: the connection is then closed.
    bool send_piece(Connection *connection) noexcept;
    void stop() noexcept { stopped_.store(true, std::memory_order_relaxed); }  // ends the waits of streams

    // ---- for the event loop; true if the caller owns the connection and must continue with it ----
    bool send_at_once(Connection *connection, uint64_t now) noexcept;  // sends a prepared answer
    bool go_on(Connection *connection, uint64_t now) noexcept;         // continues in Phase::send
    void look_at_reader(Connection *connection, uint64_t now) noexcept;  // continues at the deadline of Phase::send
    // Stops sending, and closes the connection when the peer has received everything.
    void linger(Connection *connection, uint64_t now) noexcept;
    void drain_lingering(Connection *connection, uint64_t now) noexcept;

    PreparedAnswer prepared[PREPARED_ANSWERS];
    // The answer of the health routes while the server is not ready. It has the reason, so it may change.
    Replaceable<PreparedAnswer> unready{std::make_shared<const PreparedAnswer>()};
    std::atomic<bool> ready{false};
    LogRecords<AccessRecord> log;
    std::atomic<uint64_t> open_fast_requests{0};  // requests that refer to this object

  private:
    bool is_last(const Connection *connection) const noexcept;
    bool finish(Connection *connection, uint64_t now) noexcept;
    void await_reader(Connection *connection, uint64_t now) noexcept;
    void wait_for_reader(Connection *connection, uint64_t now) noexcept;
    bool reads_enough(Connection *connection, uint64_t now) noexcept;

    HttpConnections *const connections_;
    const HttpServerConfig *const config_;
    ServerCounters *const counts_;
    std::atomic<bool> stopped_{false};
};

}  // namespace ksrv
