// What is answered, or put into a model's queue, without the Falcon app: which model a message names, descriptions,
// full queues, and the run queue of infer requests that wait for a thread in Python.
//
// The HTTP server owns it, above its answers. All functions but `next_to_run` and `take_fast_requests`, which are the thread's in
// Python, are for the owner of a connection. The run queue and the table have their locks.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "reactor/run_queue.hpp"
#include "server/answer_sender.hpp"
#include "server/fast_path.hpp"
#include "server/route_table.hpp"

namespace ksrv {

class NativeRoutes {
  public:
    NativeRoutes(EventLoop *loop, HttpConnections *connections, AnswerSender *answers, ServerCounts *counts) noexcept
        : loop_(loop), connections_(connections), answers_(answers), counts_(counts) {}

    // Has Python check the credentials, before a body is waited for. True: the connection is not the caller's.
    bool check_first(Connection *connection) noexcept;

    // Sets up the answer to a GET that needs no Python; false where Python has to answer.
    bool put_get(Connection *connection) noexcept;
    // Whether requests reach the model that a message names.
    bool is_routed(Connection *connection) noexcept;
    // Answers 503 without Python where the model's queue is full. A body that is not `complete` stays unread, and the connection
    // closes behind the answer. A complete fast-path request goes into the queue. True: the connection is not the caller's.
    bool try_route(Connection *connection, bool complete) noexcept;
    // Puts an infer request whose body has come to its end into its model's queue, or has it wait for Python.
    void begin_infer(Connection *connection) noexcept;

    // The next request; null if none waits, or it is another protocol's turn.
    Connection *next_to_run() noexcept { return loop_->begin_request() ? to_run_.pop() : nullptr; }
    bool any_to_run() const noexcept { return !to_run_.empty(); }
    // Takes the fast-path request of a connection that `next_to_run` gave out, and the requests behind it up to the first that goes
    // to another model.
    size_t take_fast_requests(Connection *first, FastRequest **out, size_t room) noexcept;

    Routes tables;
    std::atomic<uint64_t> model_changes{0};  // routes of an earlier state describe no model

  private:
    bool put_description(Connection *connection) noexcept;
    bool submit_fast_request(Connection *connection, const ModelRoute &route) noexcept;
    void queue_to_run(Connection *connection) noexcept;

    EventLoop *const loop_;
    HttpConnections *const connections_;
    AnswerSender *const answers_;
    ServerCounts *const counts_;
    RunQueue<Connection, &Connection::next> to_run_;
};

}  // namespace ksrv
