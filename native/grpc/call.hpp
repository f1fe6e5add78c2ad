// A gRPC call: its metadata, its messages in both directions, and its end.
//
// Strategy: the connection's owner receives. Once a message is complete, the call is added to the run queue, and from
// then on any thread may answer. The call's mutex guards data of both sides. References to a call are counted: by its
// connection while the stream is open, by the run queue, and by the code that answers it.

#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/assertions.hpp"
#include "base/clock.hpp"
#include "base/monotonic_condition.hpp"
#include "base/small_vector.hpp"
#include "grpc/call_head.hpp"
#include "grpc/messages.hpp"
#include "grpc/payload.hpp"
#include "grpc/status.hpp"
#include "queue/request_queue.hpp"

namespace ksrv {

struct FastRequest;

}  // namespace ksrv

namespace ksrv::grpc {

class Connection;

// Properties of a method that the server uses before it calls Python.
struct Method {
    std::string path;
    bool streams = false;  // messages are taken one by one, and the call starts with its metadata
    bool small = false;    // its messages are never large
    bool infer = false;    // ModelInfer, whose tensors must be aligned
    bool is_open = false;  // needs no credentials
    bool control = false;  // changes models: needs the control token, if one is configured
};

// The messages that a call receives. Changed only by the connection's owner.
enum class Receiving : uint8_t {
    head,        // the metadata is incomplete
    message,     // of a stream: the next message, of a unary call: its only message
    complete,    // a unary call's message has arrived, or the client has ended its stream
    discarding,  // the call is answered: further messages are dropped
};

// The part of the answer that the session has. Changed only by the connection's owner.
enum class Answering : uint8_t {
    none,
    body,      // headers, and messages as the client reads them
    trailers,  // the end
    reset,     // RST_STREAM
};

// Who may still change a call's answer. Guarded by the call's mutex.
enum class Life : uint8_t {
    open,       // the code that answers it
    finished,   // nobody: its status is known
    cancelled,  // nobody: its stream is reset without a status
    ended,      // nobody: the stream is closed
};

template <class... States> constexpr uint8_t states(States... some) noexcept {
    return static_cast<uint8_t>((0 | ... | (1 << static_cast<int>(some))));
}

// The states that may follow each state.
struct AllowedNext {
    uint8_t receiving[4] = {
        /* head */ states(Receiving::message, Receiving::discarding),
        /* message */ states(Receiving::complete, Receiving::discarding),
        /* complete */ states(Receiving::discarding),
        /* discarding */ states(),
    };
    uint8_t answering[4] = {
        /* none */ states(Answering::body, Answering::trailers, Answering::reset),
        // Also to `reset`, if the client does not read.
        /* body */ states(Answering::trailers, Answering::reset),
        /* trailers */ states(),
        /* reset */ states(),
    };
    uint8_t life[4] = {
        /* open */ states(Life::finished, Life::cancelled, Life::ended),
        /* finished */ states(Life::ended),
        /* cancelled */ states(Life::ended),
        /* ended */ states(),
    };
};
constexpr AllowedNext ALLOWED_NEXT;

// Builds for sanitizers and fuzzers abort if the transition is not allowed.
template <class State> void enter(State *state, State next, const uint8_t (&allowed)[4]) noexcept {
#ifdef KSRV_CHECKS_PHASES
    if (!(allowed[static_cast<int>(*state)] >> static_cast<int>(next) & 1)) abort();
#else
    (void)allowed;
#endif
    *state = next;
}

// Why a call needs Python.
enum RunReason : int { RUN_READY = 1, RUN_ENDED = 2, RUN_CHECK = 4 };

enum class Next : int { message, over, ended, late };

using Metadata = std::vector<std::pair<std::string, std::string>>;

constexpr int HTTP_STATUS = 100;

struct Outcome {
    int status = OK;  // from HTTP_STATUS on of HTTP, for a request that is not gRPC
    std::string text;
    Metadata metadata;
};

// How the client takes the answer. Used only by the connection's owner.
struct Sending {
    uint64_t sent = 0;         // bytes
    uint64_t looked_ns = 0;    // when its rate was measured,
    uint64_t sent_before = 0;  // and `sent` at that time
    uint64_t whole_ns = 0;     // when the complete answer began to wait for its client; 0 if it does not
};

// For the access log and records of requests.
struct Observed {
    std::string model, version;
    bool sampled = false;  // left the fast path, because Python records it; written before Python gets the call
};

class Call {
  public:
    Call(Connection *its, int32_t id, uint64_t now) noexcept
        : connection(its), stream(id), opened_ns(now), incoming(now) {}
    Call(const Call &) = delete;
    Call &operator=(const Call &) = delete;

    void retain() noexcept { refs_.fetch_add(1, std::memory_order_relaxed); }
    void release() noexcept {
        if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
    }

    // ---- for answering, on any thread ----
    void write(Payload *payload) noexcept;  // takes over the caller's reference
    // Ends the call, optionally with a last message. Moves out of `text` and `metadata`.
    void finish(int status, std::string &text, Metadata &metadata, Payload *last = nullptr) noexcept;
    void cancel() noexcept;  // resets the stream without a status
    bool wait_for_room(size_t most) noexcept;  // false if the call has ended
    // Waits for the next message of a stream until the clock reaches `until_ns`.
    Next next_message(Message *out, int64_t until_ns) noexcept;
    bool take_message(Message *out) noexcept;  // takes the only message of a unary call
    void note_model(const std::string &model, const std::string &version) noexcept;
    void watch(Request *request) noexcept;  // cancels the request if the call ends before it is answered
    void unwatch() noexcept;
    void admit() noexcept;  // the caller is permitted
    // Sets a Python object that is notified of the end. False if the call has ended.
    bool tell_of_end(void *object) noexcept;
    bool is_active() noexcept {
        std::lock_guard<std::mutex> guard(lock);
        return life == Life::open;
    }

    // ---- for the owner ----
    void enter(Receiving next) noexcept;
    void enter(Answering next) noexcept;
    bool streams() const noexcept { return method && method->streams; }
    // Whether it counts among the calls whose first message is incomplete.
    bool awaits_first() const noexcept {
        return receiving == Receiving::head || (receiving == Receiving::message && !method->streams);
    }
    // Whether it counts among the unary calls that Python runs, or that wait to run.
    bool is_run() const noexcept { return receiving == Receiving::complete && !method->streams; }
    // The mutex is locked.
    void enter(Life next) noexcept;
    void free_untaken() noexcept;  // frees messages that were not taken

    Connection *const connection;  // a counted reference
    int32_t stream;                // -1 once it is closed; used only by the owner
    const uint64_t opened_ns;
    const Method *method = nullptr;
    CallHead head;
    std::atomic<bool> admitted{false};  // more than the first window may be sent

    // ---- used only by the owner ----
    Receiving receiving = Receiving::head;
    Answering answering = Answering::none;
    IncomingMessage incoming;
    Sending sending;

    // ---- guarded by the mutex ----
    std::mutex lock;
    MonotonicCondition changed;
    SmallVector<Message, 1> messages;  // complete, in order
    bool peer_over = false;  // the client sends nothing more
    Life life = Life::open;
    PayloadQueue out;
    Outcome outcome;
    Observed observed;
    Request *watched = nullptr;
    void *callbacks = nullptr;  // a Python object that is notified of the end; a counted reference

    // ---- links ----
    std::atomic<int> run{0};  // the reasons to run it, in the run queue
    Call *run_next = nullptr;
    FastRequest *fast = nullptr;  // in the run queue, but not yet in its model's queue
    struct {
        std::atomic<bool> mailed{false};  // in the connection's mailbox
        Call *next_mail = nullptr;
        Call *previous = nullptr, *next = nullptr;  // in the connection's list
    } links;

  private:
    ~Call();

    std::atomic<int> refs_{1};
};

}  // namespace ksrv::grpc
