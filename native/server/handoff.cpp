// Connections whose next message is gunicorn's: given to it with every byte that came, and taken back.

#include "server/server.hpp"

namespace ksrv {

// Everything read since the message began goes along; epoll forgets the descriptor.
void HttpServer::hand_off(Connection *connection) noexcept {
    if (connection->tls) {  // gunicorn could not read on
        drop(connection);
        return;
    }
    count(SERVER_HANDOFFS);
    give_back(connection);  // who reads the body counts it
    deadlines.set(connection->slot, Deadlines::NONE);
    if (connection->registered) epoll_ctl(epoll_, EPOLL_CTL_DEL, connection->fd, nullptr);
    connection->registered = false;
    connection->phase.store(Phase::detached, std::memory_order_release);
    {
        std::lock_guard<std::mutex> guard(handoff_mutex_);
        connection->next = nullptr;
        (handoff_last_ ? handoff_last_->next : handoff_first_) = connection;
        handoff_last_ = connection;
    }
    notify();
}

Connection *HttpServer::next_handoff() noexcept {
    std::lock_guard<std::mutex> guard(handoff_mutex_);
    Connection *connection = handoff_first_;
    if (!connection) return nullptr;
    handoff_first_ = connection->next;
    if (!handoff_first_) handoff_last_ = nullptr;
    connection->next = nullptr;
    return connection;
}

// gunicorn has closed the connection, or keeps it for good.
void HttpServer::release_detached(uint32_t slot) noexcept {
    Connection *connection = connections.at(slot);
    if (connection && connection->phase.load(std::memory_order_acquire) == Phase::detached)
        drop(connection);
}

// Takes a connection back between two messages, to keep it or to close it.
bool HttpServer::adopt(uint32_t slot, int fd, bool keep) noexcept {
    Connection *connection = connections.at(slot);
    if (!connection || connection->phase.load(std::memory_order_acquire) != Phase::detached) return false;
    connection->fd = fd;
    connection->filled = 0;
    connection->shrink();
    connection->close_after = false;
    connection->saw_bytes = true;
    connection->reset_message();
    connection->stage_ns = unsigned_now_ns();
    if (!keep) end_sending(connection);
    connection->phase.store(keep ? Phase::idle : Phase::linger, std::memory_order_relaxed);
    arm_for_phase(connection, connection->stage_ns);
    return true;
}

}  // namespace ksrv
