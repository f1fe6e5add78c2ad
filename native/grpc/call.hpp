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
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/monotonic_condition.hpp"
#include "base/request_id.hpp"
#include "base/small_vector.hpp"
#include "grpc/payload.hpp"
#include "grpc/status.hpp"
#include "memory/buffer_pool.hpp"
#include "memory/memory_budget.hpp"
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

struct Message {
    Block *block = nullptr;  // null for an empty message
    size_t offset = 0, length = 0;
    bool compressed = false;
    uint64_t counted = 0;
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

void free_message(Message *message, MemoryBudget *budget) noexcept;

// Why a call needs Python.
enum RunReason : int { RUN_READY = 1, RUN_ENDED = 2, RUN_CHECK = 4 };

enum class Next : int { message, over, ended, late };

struct Call {
    Call(Connection *its, int32_t id, uint64_t now) noexcept : connection(its), stream(id), opened_ns(now) {}
    Call(const Call &) = delete;
    Call &operator=(const Call &) = delete;

    void retain() noexcept { refs.fetch_add(1, std::memory_order_relaxed); }
    void release() noexcept;  // connection.cpp

    // ---- for answering, on any thread ----
    void write(Payload *payload) noexcept;  // takes over the caller's reference
    // Ends the call, optionally with a last message. Moves out of `text` and `metadata`.
    void finish(int status, std::string &text, Metadata &metadata, Payload *last = nullptr) noexcept;
    void cancel() noexcept;  // resets the stream without a status
    void queue(Payload *payload) noexcept;  // takes over the caller's reference; the caller holds the mutex
    void drop_answer() noexcept;  // drops the unsent rest of the answer; the caller holds the mutex
    void free_untaken() noexcept;  // frees messages that were not taken; the caller holds the mutex
    bool wait_for_room(size_t most) noexcept;  // false if the call has ended
    // Waits for the next message of a stream until the clock reaches `until_ns`.
    Next next_message(Message *out, int64_t until_ns) noexcept;
    void note_model(const std::string &its_model, const std::string &its_version) noexcept;
    // Chooses the call's id by its metadata, and removes the entries that name an id.
    void identify() noexcept;
    void unwatch() noexcept;
    void watch(Request *request) noexcept;  // cancels the request if the call ends before it is answered
    bool take_message(Message *out) noexcept;  // takes the only message of a unary call
    void admit() noexcept;  // the caller is permitted
    // Sets a Python object that is notified of the end. False if the call has ended.
    bool tell_of_end(void *object) noexcept {
        std::lock_guard<std::mutex> guard(lock);
        if (!ended) callbacks = object;
        return !ended;
    }
    bool is_active() noexcept {
        std::lock_guard<std::mutex> guard(lock);
        return !ended && !finished;
    }

    Connection *const connection;  // a counted reference
    int32_t stream;                // used only by the owner
    std::atomic<int> refs{1};
    const Method *method = nullptr;

    // Metadata: lines of "name: value" in `text`, written before other threads see the call.
    struct Entry {
        uint32_t name, name_length, value, value_length;
    };
    std::string_view name_of(const Entry &entry) const noexcept { return {text.data() + entry.name, entry.name_length}; }
    std::string_view value_of(const Entry &entry) const noexcept {
        return {text.data() + entry.value, entry.value_length};
    }
    SmallVector<char, 192> text;
    SmallVector<Entry, 6> entries;
    std::string authorization;
    RequestId request_id;  // chosen when the metadata is complete
    enum class Encoding : uint8_t { identity, gzip, deflate, other } encoding = Encoding::identity;
    std::string verb, authority;
    bool is_grpc = false, is_other = false, head_too_large = false, bad_timeout = false;
    bool head_lost = false;  // not enough memory for the metadata
    bool has_authorization = false, repeats_authorization = false;
    uint64_t timeout_ns = 0;
    bool has_timeout = false;
    std::string path;  // empty if it is the path of the connection's last method
    uint64_t deadline_ns = 0;  // 0 if the call has no deadline

    // ---- receiving; used only by the owner ----
    unsigned char prefix[PREFIX];
    size_t prefix_got = 0, got = 0;
    Message incoming;
    bool discard_body = false;      // drop further DATA: the call is already answered
    bool fields_done = false;
    bool waits_for_first = false;  // no message has arrived
    std::atomic<bool> admitted{false};  // more than the first window may be sent
    size_t unconsumed = 0;      // bytes of the window
    uint64_t opened_ns, message_ns = 0;  // when the wait for the message began
    uint64_t progress_ns = 0;

    // ---- used by the run queue ----
    std::atomic<int> run{0};
    Call *run_next = nullptr;
    FastRequest *fast = nullptr;  // in the run queue, but not yet in its model's queue
    bool sampled = false;  // left the fast path, because Python records it; written before Python gets the call
    bool counted_open = false;  // included in Server::open_calls; owner thread only, once the call is answered
    std::atomic<bool> mailed{false};
    Call *mail_next = nullptr;

    // ---- guarded by the mutex ----
    std::mutex lock;
    MonotonicCondition changed;
    SmallVector<Message, 1> messages;  // complete messages in order
    size_t messages_taken = 0;
    bool peer_over = false, ended = false, finished = false, cancelled = false;
    Payload *out_first = nullptr, *out_last = nullptr;
    size_t out_bytes = 0;
    int status = OK;
    std::string status_text;
    std::string model, version;  // for the access log
    Metadata metadata;
    Request *watched = nullptr;
    void *callbacks = nullptr;  // a Python object that is notified of the end; a counted reference

    // ---- answering; used only by the owner ----
    bool answered = false;   // the response's headers were submitted
    bool trailed = false;    // its trailers were submitted
    bool overdue = false;    // the complete answer has waited for its client for too long
    uint64_t whole_ns = 0;   // when the complete answer began to wait for its client; 0 if it does not
    uint64_t answer_sent = 0, answer_before = 0, answer_looked = 0;
    Call *previous = nullptr, *next = nullptr;  // in the connection's list

  private:
    ~Call();
};

}  // namespace ksrv::grpc
