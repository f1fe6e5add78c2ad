#include "server/native_routes.hpp"

namespace ksrv {

bool NativeRoutes::check_first(Connection *connection) noexcept {
    if (connections_->is_admitted(connection)) return false;
    connection->checking = true;
    connections_->begin_run(connection);
    queue_to_run(connection);
    return true;
}

// ---- routes -------------------------------------------------------------------------------------

bool NativeRoutes::put_get(Connection *connection) noexcept {
    return is_description(connection->head.route) ? put_description(connection) : answers_->put_health(connection);
}

bool NativeRoutes::put_description(Connection *connection) noexcept {
    const Route route = connection->head.route;
    const PreparedAnswer *made = &answers_->prepared[ANSWER_SERVER];
    std::shared_ptr<const RouteTable> table;  // keeps the table alive while the answer is copied
    if (route != Route::server) {
        table = tables.get();
        const ModelRoute *model = table ? table->named_by(connection->buffer, connection->head) : nullptr;
        if (!model || table->state != model_changes.load(std::memory_order_acquire)) return false;
        made = route == Route::metadata ? &model->metadata : &model->model_ready;
    }
    if (made->status == 0) return false;
    counts_->count(ServerCounter::described);
    return answers_->put_prepared(connection, *made);
}

bool NativeRoutes::is_routed(Connection *connection) noexcept {
    const std::shared_ptr<const RouteTable> table = tables.get();
    return table && table->named_by(connection->buffer, connection->head);
}

bool NativeRoutes::is_for_app(Connection *connection) noexcept {
    const std::shared_ptr<const RouteTable> table = tables.get();
    const ModelRoute *route = table ? table->named_by(connection->buffer, connection->head) : nullptr;
    return !route || !(route->plain >> (connection->head.plain - 1) & 1);
}

bool NativeRoutes::try_route(Connection *connection, bool complete) noexcept {
    if (!connections_->is_admitted(connection)) return false;  // strangers must not learn that the queue is full
    const std::shared_ptr<const RouteTable> table = tables.get();
    if (!table) return false;
    const ModelRoute *route = table->named_by(connection->buffer, connection->head);
    if (!route) return false;
    if (!route->queue->turns_away())
        return complete && route->signature && submit_fast_request(connection, *route);
    if (!complete) {
        answers_->refuse(connection, route->full, ServerCounter::queue_full);
        return true;
    }
    counts_->count(ServerCounter::queue_full);
    answers_->send_prepared(connection, route->full);
    return true;
}

void NativeRoutes::begin_infer(Connection *connection) noexcept {
    counts_->count(ServerCounter::infer);
    if (connection->body.got == connection->head.content_length && try_route(connection, true)) return;
    connections_->begin_run(connection);
    queue_to_run(connection);
}

// Adds a complete message to its model's queue, or to the run queue. False if it is not a fast-path request, Python
// must record it, or the queue refuses it.
bool NativeRoutes::submit_fast_request(Connection *connection, const ModelRoute &route) noexcept {
    const unsigned path = connection->head.plain;
    FastRequest *request = make_fast_request(connection, route.signature, path ? &(*forms_)[path - 1] : nullptr,
                                             answers_, unsigned_now_ns());
    if (!request) return false;
    if (route.signature->sampler.chooses()) {
        connection->sampled = true;
        undo_fast_request(request);  // the returned turn is not needed: `queue_to_run` begins a turn
        return false;
    }
    counts_->count(ServerCounter::fast_path);
    connections_->begin_run(connection);
    if (route.queue->inline_for_all.load() && request->layout.decodes_quickly()) {
        connection->fast_request = request;
        queue_to_run(connection);
        return true;
    }
    // Watched before the push, because another thread may answer the request right after it.
    connections_->disconnects.watch(connection, request);
    if (route.queue->push(request) == PUSH_OK) {
        release(request);
        return true;
    }
    connections_->disconnects.unwatch(connection);
    undo_fast_request(request);
    return false;
}

// ---- the run queue ------------------------------------------------------------------------------

void NativeRoutes::queue_to_run(Connection *connection) noexcept {
    if (!connection->fast_request) connection->begin_turn();
    to_run_.push(connection);
    loop_->wake();
}

size_t NativeRoutes::take_fast_requests(Connection *first, FastRequest **out, size_t room) noexcept {
    size_t count = 0;
    out[count++] = first->fast_request;
    first->fast_request = nullptr;
    ModelSignature *signature = out[0]->signature;
    if (room <= 1) return count;
    const auto joins = [&](Connection *next) {
        return next->fast_request && next->fast_request->signature == signature;
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
