// Exchanges messages with the Falcon app. See app_messages.hpp.

#include <algorithm>

#include "server/server.hpp"

namespace ksrv {

// Begins to receive a short body of a message for the app. Gives the app a message without a body, or with a longer
// body, at once. False if the caller no longer owns the connection.
bool HttpServer::start_app_message(Connection *connection, uint64_t now) noexcept {
    const Head &head = connection->head;
    if (!head.chunked && head.content_length == 0) {
        ask_app(connection, BodyState::none);
        return false;
    }
    const size_t with_head = connection->came_with_head();
    const bool waits = head.expects_continue && with_head == 0;  // the client waits for 100 Continue
    if (waits || (!head.chunked && head.content_length > std::min(EARLY_BODY, config.limits.body))) {
        ask_app(connection, BodyState::unread);
        return false;
    }
    if ((head.chunked || with_head < head.content_length) && routes.check_first(connection)) return false;
    connection->body.most = std::min(EARLY_BODY, config.limits.body);
    return start_body(connection, now);
}

// Gives a message to the app's threads. If it was not received completely, the start of the next message is unknown, so
// that its answer closes the connection.
void HttpServer::ask_app(Connection *connection, BodyState state) noexcept {
    counts.count(ServerCounter::app);
    connection->body.state = state;
    if (state != BodyState::none && state != BodyState::whole) connection->close_after = true;
    connections.begin_run(connection);
    connection->begin_turn();
    app_queue_.push(connection->head.question ? AppQueueKind::metadata : AppQueueKind::others, connection);
}

// Waits for a message. Null once the server stops.
Connection *HttpServer::next_app_message(AppQueueKind kind) noexcept {
    return app_queue_.pop(kind);
}

// Receives the body that the app requested. A thread then gets the message again.
void HttpServer::receive_for_app(Connection *connection, uint64_t most) noexcept {
    const uint64_t now = unsigned_now_ns();
    connection->body.asked = true;
    connection->body.most = std::min(most, config.limits.body);
    connection->close_after = connection->head.close;
    connection->head.route = Route::none;  // the app has begun to answer it
    if (!connection->body.block) {
        if (start_body(connection, now)) advance(connection, now);
        return;
    }
    connection->stage_ns = now;
    connection->enter(Phase::body);
    receive_body(connection, now);
}

}  // namespace ksrv
