// Handles the messages that need no Falcon app: GETs of health and descriptions get a prepared answer, infer requests
// are queued for their model or refused if its queue is full. Infer requests that need Python wait in the run queue for
// the I/O thread that is in Python.
//
// The HTTP server owns the object, which calls the server's HttpConnections and AnswerSender. `next_to_run` and
// `take_fast_requests` are for the thread in Python, all other functions for the owner of a connection. The run queue
// and the table have locks.

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
    // `forms`: of the plain paths.
    NativeRoutes(EventLoop *loop, HttpConnections *connections, AnswerSender *answers, ServerCounters *counts,
                 const std::vector<PlainForm> *forms) noexcept
        : loop_(loop), connections_(connections), answers_(answers), counts_(counts), forms_(forms) {}

    // If the message's credentials are not known yet, makes Python check them before the body is received. True if so:
    // the caller no longer owns the connection.
    bool check_first(Connection *connection) noexcept;

    // Prepares the answer to a GET that needs no Python. False if Python must answer.
    bool put_get(Connection *connection) noexcept;
    // Whether the model that a message names is served.
    bool is_routed(Connection *connection) noexcept;
    // Whether a request in plain JSON is for the app, because the model does not take its path natively.
    bool is_for_app(Connection *connection) noexcept;
    // Answers 503 without Python if the model's queue is full. If the message is not `complete`, its body is not read,
    // and the connection is closed after the answer. Adds a complete fast-path request to the queue. True if the caller
    // no longer owns the connection.
    bool try_route(Connection *connection, bool complete) noexcept;
    // Adds an infer request whose body has ended to its model's queue, or to the run queue.
    void begin_infer(Connection *connection) noexcept;

    // The next message of the run queue. Null if none waits, or if another protocol must run first.
    Connection *next_to_run() noexcept { return any_to_run() && loop_->begin_request() ? to_run_.pop() : nullptr; }
    bool any_to_run() const noexcept { return !to_run_.empty(); }
    // Takes the fast-path request of a connection from `next_to_run`, and the requests after it up to the first request
    // to another model.
    size_t take_fast_requests(Connection *first, FastRequest **out, size_t room) noexcept;

    Routes tables;
    // The number of changes to models. A table of an earlier state is still used for queues, but describes no model.
    std::atomic<uint64_t> model_changes{0};

  private:
    bool put_description(Connection *connection) noexcept;
    bool submit_fast_request(Connection *connection, const ModelRoute &route) noexcept;
    void queue_to_run(Connection *connection) noexcept;

    EventLoop *const loop_;
    HttpConnections *const connections_;
    AnswerSender *const answers_;
    ServerCounters *const counts_;
    const std::vector<PlainForm> *const forms_;
    RunQueue<Connection, &Connection::next> to_run_;
};

}  // namespace ksrv
