// Messages for the Falcon app: they wait here for a thread of Python's, and go on receiving where the app wants
// their body.
//
// Strategy: a thread gets a message when no more of it is waited for, so that it never waits for a client. A
// body that is short comes before. Of a longer body, or one whose sender waits for 100 Continue, a thread asks the app
// first whether it is wanted: that looks at the caller, the route and the announced length. Then the body is received
// here, while the thread goes on to other messages, and the app is called when it is there. So the app is called
// once for a message.

#include <algorithm>

#include "server/server.hpp"

namespace ksrv {

// Receives the body of a message for the app, if it is a short one. False: the connection is not the caller's
// any more.
bool HttpServer::start_app_message(Connection *connection, uint64_t now) noexcept {
    const Head &head = connection->head;
    if (!head.chunked && head.content_length == 0) {
        ask_app(connection, BodyState::none);
        return false;
    }
    const size_t with_head = connection->came_with_head();
    const bool waits = head.expects_continue && with_head == 0;
    if (waits || (!head.chunked && head.content_length > std::min(EARLY_BODY, config.limits.body))) {
        ask_app(connection, BodyState::unread);
        return false;
    }
    if ((head.chunked || with_head < head.content_length) && check_first(connection)) return false;
    connection->body.most = std::min(EARLY_BODY, config.limits.body);
    return start_body(connection, now);
}

// Gives a message to the app's threads. Unless all of it was received, where the next one would begin is not
// known: its answer closes the connection.
void HttpServer::ask_app(Connection *connection, BodyState state) noexcept {
    count(SERVER_APP);
    timers.set(connection->slot, Timers::NONE);
    connection->body.state = state;
    if (state != BodyState::none && state != BodyState::whole) connection->close_after = true;
    connection->enter(Phase::run);
    begin_turn(connection);
    app_queue_.push(connection->head.question ? AppQueueKind::metadata : AppQueueKind::others, connection);
}

// Waits for a message that its client still wants answered; null once the server stops.
Connection *HttpServer::next_app_message(AppQueueKind kind) noexcept {
    for (;;) {
        Connection *connection = app_queue_.pop(kind);
        if (!connection || !drop_cut(connection)) return connection;
    }
}

// Receives the body that the app wants; a thread gets the message again when it is there.
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
