// A gRPC call: its metadata, its messages in both directions, and its end.
//
// Strategy: only the connection's owner (see connection.hpp) receives and sends. Once a message is complete, the call
// is added to the run queue, and from then on any thread may write the answer into the call, and then mails the call to
// the owner. The call's mutex guards the data that both sides use. References to a call are counted: by its connection
// while the stream is open, by the run queue, and by the code that answers it.

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
struct MessageForm;

// The properties of a gRPC method that the server needs before it calls Python.
struct Method {
    std::string path;
    bool streams = false;  // messages are taken one by one, and the call starts with its metadata
    bool small = false;    // its messages are never large
    const MessageForm *form = nullptr;  // of inference whose messages need no Python; their tensors must be aligned
    void *reader = nullptr;  // the Python object whose `parse` reads these messages, too; a borrowed reference
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

// The part of the answer that was passed to the HTTP/2 session. Changed only by the connection's owner.
enum class Answering : uint8_t {
    none,
    body,      // headers, and messages as the client reads them
    trailers,  // the end
    reset,     // RST_STREAM
};

// Whether the answer may still change: only in `open`. Guarded by the call's mutex.
enum class Life : uint8_t {
    open,       // the code that answers may write messages
    finished,   // the status is known; the rest of the answer waits to be sent
    cancelled,  // the stream is reset without a status
    ended,      // the stream is closed
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

// Why a call needs Python (bits): to run its method, to notify `callbacks` of its end, to check the caller's token.
enum RunReason : int { RUN_READY = 1, RUN_ENDED = 2, RUN_CHECK = 4 };

// The result of waiting for a message: taken; the client sends no more; the call has ended; the time is over.
enum class Next : int { message, over, ended, late };

using Metadata = std::vector<std::pair<std::string, std::string>>;

constexpr int HTTP_STATUS = 100;  // from here on an `Outcome::status` is an HTTP status, below a gRPC status

struct Outcome {
    int status = OK;  // an HTTP status if the request is not gRPC
    std::string text;
    Metadata metadata;
};

// How the client takes the answer. Used only by the connection's owner.
struct Sending {
    uint64_t sent = 0;         // bytes
    uint64_t looked_ns = 0;    // when its rate was measured,
    uint64_t sent_before = 0;  // and `sent` at that time
    uint64_t whole_ns = 0;     // since when the complete answer has been undelivered; 0 if it is not
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
    // Waits until at most `most` bytes of the answer are unsent. False if the call has ended.
    bool wait_for_room(size_t most) noexcept;
    // Waits for the next message of a stream until the clock reaches `until_ns`.
    Next next_message(Message *out, int64_t until_ns) noexcept;
    bool take_message(Message *out) noexcept;  // takes the only message of a unary call
    void note_model(const std::string &model, const std::string &version) noexcept;
    void watch(Request *request) noexcept;  // cancels the request if the call ends before it is answered
    void unwatch() noexcept;
    void admit() noexcept;  // called when Python has checked the caller: the client may send all of its message
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
    // Whether `unfinished` counts it: a call whose first message is incomplete.
    bool awaits_first() const noexcept {
        return receiving == Receiving::head || (receiving == Receiving::message && !method->streams);
    }
    // Whether `Server::open_calls` counts it: a unary call that Python runs, or that waits to run.
    bool counts_as_open() const noexcept { return receiving == Receiving::complete && !method->streams; }
    // ---- with the mutex locked ----
    void enter(Life next) noexcept;
    void free_messages() noexcept;  // frees messages that were not taken

    Connection *const connection;  // a counted reference
    int32_t stream;                // -1 once it is closed; used only by the owner
    const uint64_t opened_ns;
    const Method *method = nullptr;
    CallHead head;
    std::atomic<bool> admitted{false};  // the caller needs no check any more: the client may send more than one window

    // ---- used only by the owner ----
    Receiving receiving = Receiving::head;
    Answering answering = Answering::none;
    IncomingMessage incoming;
    Sending sending;

    // ---- guarded by the mutex ----
    std::mutex lock;
    MonotonicCondition changed;
    SmallVector<Message, 1> messages;  // complete, in order
    bool peer_over = false;  // the client sends nothing more; only the owner sets it
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
