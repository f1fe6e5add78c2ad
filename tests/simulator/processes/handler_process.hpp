// A simulated handler process: a thread that has the memory of the ring and an end of the channel, runs batches as
// ksrv/_native/process/batch_ring.pyx does, and dies, stops and lies as the seed decides.
//
// Each row of a request repeats a tag; a correct answer has the tag of each row. The thread may end at any seam, because it
// has only plain memory.

#pragma once

#include <thread>

#include "../network.hpp"
#include "ring_seams.hpp"

namespace sim {

using namespace ksrv;

constexpr size_t TAG_BYTES = 16, MOST_ROWS = 16;

struct Tag {  // of a row
    uint32_t client, ask, row, length;
    bool operator==(const Tag &other) const { return memcmp(this, &other, sizeof other) == 0; }
};
static_assert(sizeof(Tag) == TAG_BYTES);

// A message on the channel, longer than a bell.
struct ChannelMessage {
    enum Kind : uint32_t { run = 1, answer, failure, chat, close } kind;
    uint32_t rows;
    uint64_t number;
    Tag tags[MOST_ROWS];
};

struct HandlerRules {  // of a million batches, or lives
    uint64_t fails = 0, on_channel = 0, lies = 0, chats = 0, rings = 0, keeps = 0, slow = 0, dies = 0, stops = 0;
    int64_t quick_ns = 20 * US, slow_ns = 8 * MS;  // how long a batch runs at most
    int64_t spin_ns = 0;
    size_t row_bytes = TAG_BYTES;
    bool harms() const { return fails || lies || dies; }
};

// Whether a client has sent the rows; their tags.
inline bool read_tags(const unsigned char *rows, size_t count, size_t row_bytes, Tag *tags) {
    for (size_t i = 0; i < count; ++i, rows += row_bytes) {
        memcpy(&tags[i], rows, TAG_BYTES);
        if (memcmp(rows, rows + TAG_BYTES, row_bytes - TAG_BYTES) != 0) return false;
    }
    return true;
}

class HandlerProcess {
  public:
    // `ring` is the process's mapping.
    HandlerProcess(Ring *ring, int channel, const HandlerRules &rules) : ring_(ring), channel_(channel), rules_(rules) {
        const bool before = std::exchange(machine().faults_allowed, false);
        process_ = std::thread([this] { live_until_killed(); });
        machine().faults_allowed = before;
        thread_ = machine().thread_of(process_.native_handle());
        Machine::Outside outside;
        Random &random = machine().random;
        alive_ = std::make_shared<HandlerProcess *>(this);
        const auto some_time = [&random] { return static_cast<int64_t>(random.below(random.chance(500000) ? 5 : 500)) * MS + static_cast<int64_t>(random.below(MS)); };
        if (random.chance(rules.dies)) machine().after(some_time(), [held = alive_] { if (*held) (*held)->kill(); });
        if (random.chance(rules.stops)) machine().after(some_time(), [held = alive_, some_time] {
            if (*held) machine().stop((*held)->thread_, machine().now + some_time());
        });
    }
    ~HandlerProcess() {
        kill();
        process_.join();
        *alive_ = nullptr;
        delete ring_;
    }

    // SIGKILL: nothing it does is seen from here on, and its end of the channel closes.
    void kill() {
        machine().kill(thread_);
        hang_up();
    }

  private:
    void live_until_killed() {
        jmp_buf end;
        Machine::self()->end = &end;
        if (setjmp(end) == 0) live();
        Machine::self()->end = nullptr;
        hang_up();
    }
    void hang_up() {
        Machine::Outside outside;
        if (channel_ >= 0) network().closed(std::exchange(channel_, -1));
    }

    void live() {
        for (;;) {
            const Bell bell = wait_for_batch(*ring_, channel_, completed_, rules_.spin_ns);
            if (bell == BELL_INTERRUPTED) continue;
            if (bell == BELL_RANG) {
                run();
            } else if (bell != BELL_MESSAGE || !take_message()) {
                return;
            }
        }
    }

    // A batch that has no place in the ring; false if the worker wants no more of it.
    bool take_message() {
        ChannelMessage message;
        const ssize_t length = recv(channel_, &message, sizeof message, MSG_DONTWAIT);
        if (length < 0) return errno == EAGAIN || errno == EINTR;
        if (length <= 1) return length == 1;
        if (message.kind != ChannelMessage::run) return false;
        work();
        message.kind = happens(rules_.fails) ? ChannelMessage::failure : ChannelMessage::answer;
        say(message);
        return true;
    }

    void run() {
        const uint64_t number = completed_ + 1;
        RingRun head;
        memcpy(&head, ring_->batch(number), sizeof head);
        if (head.number != number || head.inputs != 1 || head.rows > MOST_ROWS || head.large > RING_LARGE_SLOTS)
            machine().fail("a process looks for batch %llu and finds batch %llu of %llu rows", (unsigned long long)number,
                           (unsigned long long)head.number, (unsigned long long)head.rows);
        const int large = static_cast<int>(head.large) - 1;
        const unsigned char *rows = large < 0 ? ring_->batch(number) + head.first_row : ring_->large(large);
        if (large >= 0) {
            if (kept_[large].rows) machine().fail("the large place %d is filled, and the process holds it", large);
            ring_->control().held[large].store(1);
        }
        ChannelMessage done{ChannelMessage::answer, static_cast<uint32_t>(head.rows), number, {}};
        if (!read_tags(rows, head.rows, rules_.row_bytes, done.tags)) machine().fail("batch %llu has torn rows", (unsigned long long)number);
        check_requests(ring_->batch(number), head, done.tags);
        RingAnswer *place = reinterpret_cast<RingAnswer *>(ring_->answer(number));
        place->number = number;
        place->began_ns = now_ns();
        work();
        look_again(rows, done);
        if (large >= 0) let_go(large, done);
        place->ended_ns = happens(rules_.lies) ? static_cast<int64_t>(machine().random.next()) : now_ns();
        place->form = write(place, head, done.tags);
        if (place->form == RING_ON_CHANNEL) {
            if (happens(rules_.fails)) done.kind = ChannelMessage::failure;
            say(done);
        }
        if (happens(rules_.rings)) ring_bell(channel_);
        completed_ = number;
        complete_batch(*ring_, channel_, number);
        if (happens(rules_.rings)) ring_bell(channel_);
    }

    // Runs a batch as the handler does.
    void work() {
        if (happens(rules_.chats)) say({ChannelMessage::chat, 0, completed_ + 1, {}});
        const uint64_t slow = static_cast<uint64_t>(rules_.slow_ns), quick = static_cast<uint64_t>(rules_.quick_ns);
        Random &random = machine().random;
        machine().sleep_until(machine().now + static_cast<int64_t>(happens(rules_.slow) ? random.between(slow / 2, slow) : random.below(quick)));
    }
    void look_again(const unsigned char *rows, const ChannelMessage &seen) const {
        Tag now[MOST_ROWS];
        if (!read_tags(rows, seen.rows, rules_.row_bytes, now) || memcmp(now, seen.tags, seen.rows * TAG_BYTES) != 0)
            machine().fail("the rows of batch %llu are written over while the process has them", (unsigned long long)seen.number);
    }
    // Each request of a batch is there, with its id.
    void check_requests(const unsigned char *place, const RingRun &head, const Tag *tags) const {
        const unsigned char *record = place + sizeof head;
        const char *text = reinterpret_cast<const char *>(record) + head.requests * sizeof(RingRequest);
        size_t row = 0;
        for (uint32_t i = 0; i < head.requests; ++i) {
            RingRequest one;
            memcpy(&one, record + i * sizeof one, sizeof one);
            char id[32];
            snprintf(id, sizeof id, "c%u-%u", tags[row].client, tags[row].ask);
            if (one.id_length != strlen(id) || memcmp(text, id, one.id_length) != 0) machine().fail("a batch has another request's id than %s", id);
            for (uint32_t k = 0; k < one.rows; ++k, ++row)
                if (row >= head.rows || tags[row].row != k || tags[row].ask != tags[row - k].ask) machine().fail("a row of %s belongs to another request", id);
            text += one.id_length + one.head_length;
        }
        if (row != head.rows) machine().fail("a batch has %zu rows of requests, and says %llu", row, (unsigned long long)head.rows);
    }
    // The handler keeps an array in the place: for a while, or until the batch ends. Other arrays end meanwhile.
    void let_go(int large, const ChannelMessage &seen) {
        if (happens(rules_.keeps)) {
            kept_[large] = seen;
        } else {
            ring_->control().held[large].store(0);
        }
        const int other = static_cast<int>(machine().random.below(RING_LARGE_SLOTS));
        if (!kept_[other].rows) return;
        look_again(ring_->large(other), kept_[other]);
        kept_[other].rows = 0;
        ring_->control().held[other].store(0);
    }

    uint32_t write(RingAnswer *place, const RingRun &head, const Tag *tags) {
        memcpy(ring_->answer(head.number) + RING_ANSWER_HEAD, tags, head.rows * TAG_BYTES);
        place->outputs = place->stages = 1;
        strcpy(place->stage[0].name, "inference");
        place->stage[0].ns = happens(rules_.lies) ? machine().random.next() : 1;
        RingOutput &output = place->output[0];
        output = {0, head.rows * TAG_BYTES, {static_cast<int64_t>(head.rows), 4}, DT_FP32, 2, 1, {'y'}};
        if (happens(rules_.lies)) return lie(place);
        return happens(rules_.on_channel) ? RING_ON_CHANNEL : RING_OUTPUTS_HERE;
    }
    // Writes an answer that no correct process gives. Returns the form.
    uint32_t lie(RingAnswer *place) {
        Random &random = machine().random;
        RingOutput &output = place->output[0];
        switch (random.below(10)) {
        case 0: place->number += random.one_of({1, -1, 8}); break;
        case 1: place->outputs = random.one_of({0u, 2u, 9u, UINT32_MAX}); break;
        case 2: place->stages = random.one_of({9u, UINT32_MAX}); break;
        case 3: return 2 + static_cast<uint32_t>(random.below(UINT32_MAX - 1));
        case 4: output.nbytes = random.one_of({0ull, 15ull, 1ull << 63, ~0ull}); break;
        case 5: output.shape[random.below(2)] = random.one_of({0ll, -1ll, 5ll, 1ll << 62}); break;
        case 6: output.offset = random.one_of({RING_ANSWER_BYTES - 8, RING_ANSWER_BYTES, SIZE_MAX}); break;
        case 7: output.rank = random.one_of({0, 1, 9, 255}), output.datatype = random.one_of({0, 11, 200}); break;
        case 8: output.name_length = random.one_of({0, 256, 257, 65535}), memset(output.name, 0xff, sizeof output.name); break;
        default: ring_->control().completed.store(random.one_of({uint64_t{0}, completed_ + 3, completed_ + 100, UINT64_MAX})); break;
        }
        return RING_OUTPUTS_HERE;
    }

    void say(const ChannelMessage &message) {
        while (send(channel_, &message, sizeof message, MSG_NOSIGNAL) < 0 && errno != EPIPE)
            machine().sleep_until(machine().now + MS);  // it waits for room
    }
    static bool happens(uint64_t in_a_million) { return machine().random.chance(in_a_million); }

    Ring *const ring_;
    int channel_;
    const HandlerRules rules_;
    uint64_t completed_ = 0;
    ChannelMessage kept_[RING_LARGE_SLOTS] = {};  // of no rows if the handler has no array in the place
    std::thread process_;
    Thread *thread_ = nullptr;
    std::shared_ptr<HandlerProcess *> alive_;
};

}  // namespace sim
