// Answers whose length is not known when they begin: sent piece by piece, as the peer reads.
//
// Strategy: the thread that makes the pieces owns the connection. What the socket takes at once costs it
// nothing more; else the connection goes to the I/O threads, with their deadlines for slow readers, and the
// thread waits until they give it back. So at most one piece of a stream lies in memory.

#include "server/server.hpp"

namespace ksrv {

// Sends what lies in `connection->out`. False: the peer has gone, or reads too slowly, and the connection is
// closed.
bool HttpServer::send_piece(Connection *connection) noexcept {
    const Sent sent = flush(connection, false);
    if (sent == Sent::all) return true;
    if (sent == Sent::broken) {
        count(SERVER_DISCONNECTED);
        drop(connection);
        return false;
    }
    const uint64_t turn = connection->turn.load(std::memory_order_relaxed);
    connection->stream.store(StreamState::waiting, std::memory_order_release);
    wait_for_reader(connection, unsigned_now_ns());
    std::unique_lock<std::mutex> lock(stream_mutex_);
    for (;;) {
        if (connection->turn.load(std::memory_order_acquire) != turn) return false;
        if (connection->stream.load(std::memory_order_acquire) == StreamState::taken) break;
        if (stopping_.load(std::memory_order_acquire)) {
            lock.unlock();
            return take_back_stopped(connection, turn);
        }
        stream_moved_.wait(lock);
    }
    connection->stream.store(StreamState::none, std::memory_order_relaxed);
    return true;
}

// The server stops: what the connection still sends is the caller's memory, so it is closed before the caller
// goes on. False.
bool HttpServer::take_back_stopped(Connection *connection, uint64_t turn) noexcept {
    while (connection->turn.load(std::memory_order_acquire) == turn) {
        if (connection->stream.load(std::memory_order_acquire) == StreamState::taken ||
            connection->claim_for_sweep()) {
            drop(connection);
            break;
        }
        sched_yield();  // an I/O thread is sending
    }
    return false;
}

// The peer has taken all of a piece: the connection is the stream's thread's again.
void HttpServer::resume_stream(Connection *connection) noexcept {
    process_budget().give_back_answer(connection->answer_counted, connection->answer_room);
    connection->answer_room = AnswerRoom::none;
    timers.set(connection->slot, Timers::NONE);
    connection->enter(Phase::run);
    std::lock_guard<std::mutex> guard(stream_mutex_);
    connection->stream.store(StreamState::taken, std::memory_order_release);
    stream_moved_.notify_all();
}

// A connection was closed: the thread of its stream, if it has one, need not wait any longer.
void HttpServer::end_stream_of(Connection *connection) noexcept {
    if (connection->stream.load(std::memory_order_acquire) == StreamState::none) return;
    std::lock_guard<std::mutex> guard(stream_mutex_);
    connection->stream.store(StreamState::none, std::memory_order_relaxed);
    connection->turn.fetch_add(2, std::memory_order_release);
    stream_moved_.notify_all();
}

void HttpServer::stop_streams() noexcept {
    std::lock_guard<std::mutex> guard(stream_mutex_);
    stream_moved_.notify_all();
}

}  // namespace ksrv
