// How answers are made and sent, and how their connections go on or close.
//
// Strategy: the thread that answers sends as much as the socket takes, and gives the connection to the event loop for the rest. A
// message that is with the engine is answered once: whoever answers takes its turn first (`take_turn`).
//
// The HTTP server owns it, above its connections. Any thread answers, each the connection that it owns; what they share is set
// before connections come, or atomic, but for `unready` and the log, which have their locks.

#pragma once

#include <atomic>
#include <cstdint>

#include "http/prepared_answer.hpp"
#include "server/access_log.hpp"
#include "server/http_connections.hpp"

namespace ksrv {

class AnswerSender {
  public:
    AnswerSender(HttpConnections *connections, const HttpServerConfig *config, ServerCounts *counts) noexcept
        : connections_(connections), config_(config), counts_(counts) {}

    HttpConnections &connections() const noexcept { return *connections_; }

    // The connection of a message, for the caller to answer or drop. Null where it was answered before; that is counted.
    Connection *take_turn(const Turn &turn) noexcept;
    void fail(const Turn &turn) noexcept;  // 500, where it was not answered

    // Renders an answer into `connection->out`, with room for `parts` parts of a body that is not copied into it;
    // false when there is no memory.
    bool put(Connection *connection, uint16_t status, const char *line, size_t line_length, const char *fields,
             size_t fields_length, const char *body, size_t body_length, int parts = 1) noexcept;
    // The same with a ready-made answer, without its body for HEAD.
    bool put_prepared(Connection *connection, const PreparedAnswer &made) noexcept;
    bool put_health(Connection *connection) noexcept;
    // Takes an answer's bytes in place of its message's; false where there is no room for it.
    bool reserve(Connection *connection, uint64_t nbytes) noexcept;

    // Sends `connection->out`. True: it is over and `owners` are the caller's to give back; false: the socket is full, and the
    // server keeps them. The connection is not the caller's any more.
    bool send(Connection *connection, Owners *owners) noexcept;
    void send_prepared(Connection *connection, PreparedAnswerIndex which) noexcept;
    void send_prepared(Connection *connection, const PreparedAnswer &made) noexcept;
    // Answers a message whose rest is not read, and closes.
    void refuse(Connection *connection, const PreparedAnswer &made, ServerCounter counter) noexcept;
    void refuse(Connection *connection, PreparedAnswerIndex which, ServerCounter counter) noexcept {
        refuse(connection, prepared[which], counter);
    }
    // Sends what lies in `connection->out`, a piece of an answer whose length is not known, and waits until the peer has taken it.
    // False: the peer has gone, or reads too slowly, and the connection is closed.
    bool send_piece(Connection *connection) noexcept;

    // ---- for the event loop; true where the connection is the caller's, to go on with ----
    bool send_at_once(Connection *connection, uint64_t now) noexcept;  // what was put
    bool go_on(Connection *connection, uint64_t now) noexcept;         // in Phase::send
    void look_at_reader(Connection *connection, uint64_t now) noexcept;  // the same at its deadline
    // Sends no more, and closes when the peer has received the sent bytes.
    void linger(Connection *connection, uint64_t now) noexcept;
    void drain_lingering(Connection *connection, uint64_t now) noexcept;

    PreparedAnswer prepared[PREPARED_ANSWERS];
    NotReadyAnswer unready;
    std::atomic<bool> live{true}, ready{false};
    AccessLog log;
    std::atomic<uint64_t> open_fast_requests{0};  // requests that refer to this

  private:
    bool is_last(const Connection *connection) const noexcept;
    bool finish(Connection *connection, uint64_t now) noexcept;
    void wait_for_reader(Connection *connection, uint64_t now) noexcept;
    bool take_back_stopped(Connection *connection, uint64_t turn) noexcept;

    HttpConnections *const connections_;
    const HttpServerConfig *const config_;
    ServerCounts *const counts_;
};

}  // namespace ksrv
