#include "process/batch_dispatcher.hpp"

#include <algorithm>
#include <cstring>

#include "base/clock.hpp"
#include "memory/buffer_pool.hpp"
#include "queue/completions.hpp"
#include "server/fast_response.hpp"

namespace ksrv {

namespace {

FastRequest *fast(Request *request) noexcept { return static_cast<FastRequest *>(request); }

// Computes the offset of each input's rows in one block, where the handler process finds them with `ring_aligned`.
// Returns the size of the block, or more than RING_LARGE_BYTES.
std::size_t place_inputs(const std::vector<InputSignature> &inputs, const RowWriter &rows,
                         std::size_t *starts) noexcept {
    std::size_t total = 0;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i].padded && rows.row_length > RING_LARGE_BYTES) return SIZE_MAX;
        const std::uint64_t row_bytes = inputs[i].bytes_of_row(rows.row_length);
        if (row_bytes != 0 && rows.rows > RING_LARGE_BYTES / row_bytes) return SIZE_MAX;
        starts[i] = total;
        total += ring_aligned(rows.rows * row_bytes);
        if (total > RING_LARGE_BYTES) return SIZE_MAX;
    }
    return total;
}

// Copies a head. Leaves out the Authorization field if the handler must not see the control token. Returns the number
// of copied bytes.
std::size_t copy_head(char *to, FastRequest *request) noexcept {
    const char *head = request->head();
    const std::size_t length = request->head_length;
    if (!request->signature->hides_token) {
        std::memcpy(to, head, length);
        return length;
    }
    std::size_t written = 0;
    for (std::size_t at = 0; at < length;) {
        const void *found = std::memchr(head + at, '\n', length - at);
        const std::size_t end =
            found == nullptr ? length : static_cast<std::size_t>(static_cast<const char *>(found) - head) + 1;
        static constexpr char name[] = "authorization";
        constexpr std::size_t name_length = sizeof name - 1;
        bool token = end - at > name_length && head[at + name_length] == ':';
        for (std::size_t i = 0; token && i < name_length; ++i)
            token = (head[at + i] | 0x20) == name[i];
        if (!token) {
            std::memcpy(to + written, head + at, end - at);
            written += end - at;
        }
        at = end;
    }
    return written;
}

// The bytes of the sizes of a request's images in the ring: height and width of each.
std::size_t image_sizes_bytes(const FastRequestLayout &layout) noexcept {
    std::size_t inputs = 0;
    for (const auto &images : layout.images) inputs += images != nullptr;
    return inputs * layout.rows * 2 * sizeof(std::uint32_t);
}

// Writes the sizes of a request's images, and notes their inputs in the record. Returns the end.
unsigned char *write_image_sizes(unsigned char *text, const FastRequestLayout &layout, RingRequest *record) noexcept {
    for (int input = 0; input < FAST_INPUTS; ++input) {
        if (!layout.images[input]) continue;
        record->pictures |= 1u << input;
        for (std::uint32_t row = 0; row < layout.rows; ++row) {
            const EncodedImage &image = layout.images[input][row];
            const std::uint32_t size[2] = {image.height, image.width};
            std::memcpy(text, size, sizeof size);
            text += sizeof size;
        }
    }
    return text;
}

// Writes the records of the requests to `record`, then all ids, heads and sizes of images. Returns the end.
unsigned char *write_records(unsigned char *record, const std::vector<Request *> &requests) noexcept {
    unsigned char *text = record + requests.size() * sizeof(RingRequest);
    for (Request *request : requests) {
        RingRequest written{};
        const FastRequestLayout &layout = fast(request)->layout;
        written.row_length = layout.row_length;
        written.deadline_ns = fast(request)->client_deadline_ns;
        written.rows = static_cast<std::uint32_t>(request->rows);
        written.wanted_count = layout.wanted_count;
        static_assert(sizeof written.wanted == sizeof layout.wanted);
        std::memcpy(written.wanted, layout.wanted, sizeof written.wanted);
        written.id_length = static_cast<std::uint32_t>(layout.id_length);
        std::memcpy(text, fast(request)->body() + layout.id_offset, layout.id_length);
        text += layout.id_length;
        const std::size_t length = copy_head(reinterpret_cast<char *>(text), fast(request));
        written.head_length = static_cast<std::uint32_t>(length);
        text = write_image_sizes(text + length, layout, &written);
        std::memcpy(record, &written, sizeof written);
        record += sizeof written;
    }
    return text;
}

}  // namespace

void DispatchedRun::release_requests() noexcept {
    for (Request *request : requests) release(request);
    requests.clear();
}

RingDispatcher::RingDispatcher(Queue *queue, Ring *ring, int channel, Sums *sums, std::size_t room)
    : room_(room), queue_(queue), ring_(ring), channel_(channel), sums_(sums), marks_(room),
      answered_(new unsigned char[RING_ANSWER_BYTES]) {
    taken_.reserve(room);
    batch.requests.reserve(room);
    for (DispatchedRun &slot : slots_) slot.requests.reserve(room);
}

RingDispatcher::~RingDispatcher() {
    put_back();
    batch.release_requests();
}

// ---- the loop -------------------------------------------------------------------------------

Served RingDispatcher::serve(const DispatchTerms &terms) noexcept {
    publish_all();  // wake the waiters of requests that Python answered since the last call
    const std::int64_t look_ns = terms.has_calls ? now_ns() + CALLS_LOOK_NS : NEVER;
    for (;;) {
        if (!land(terms)) return Served::started;
        if (in_ring() == 0) {
            std::size_t count = pending_;
            if (pending_ == 0) {
                taken_.resize(room_);
                const Take taken =
                    queue_->take(terms.slot, taken_.data(), room_, &count, terms.max_rows,
                                 terms.delay_ns != 0 ? terms.delay_ns : regroup_ns_);
                regroup_ns_ = 0;
                if (taken == TAKE_READY_BATCH) return Served::ready;
                if (taken == TAKE_CLOSED) return Served::closed;
                if (taken == TAKE_NUDGED) return Served::nudged;
            }
            const Way way = dispatch(count, false);
            if (way == Way::plans && pending_ == 0) {  // once for a batch: if plans are still missing, Python runs it
                pending_ = count;
                return Served::plans;
            }
            pending_ = 0;
            if (way != Way::ring) return give_to_python(count);
            start(at(put_), now_ns(), terms);  // the ring was empty, so the handler begins at once
        }
        fill(terms);
        const std::uint64_t first = landed_ + 1;
        const Woke woke = wait(look_ns);
        if (woke == Woke::look) continue;
        if (!land(terms)) return Served::started;
        if (in_ring() == 0) continue;
        if (woke == Woke::message) return Served::message;
        // The late batch was answered after all. The next batch is not late: its answer will be in the ring.
        if (landed_ >= first) continue;
        hand_over(HandBack::on_channel);
        return Served::started;
    }
}

// ---- dispatching into the ring --------------------------------------------------------------

// Puts the first `count` requests of `taken_` into the next slot of the ring, if they are fast-path requests and fit.
// `ahead`: another batch is running.
RingDispatcher::Way RingDispatcher::dispatch(std::size_t count, bool ahead) noexcept {
    const std::int64_t began = now_ns();
    const std::uint64_t number = put_ + 1;
    DispatchedRun &made = at(number);
    unsigned char *const slot = ring_->batch(number);
    std::size_t first_row = sizeof(RingRun) + count * sizeof(RingRequest);
    for (std::size_t i = 0; i < count; ++i) {
        if (!is_fast_request(taken_[i])) return Way::python;
        const FastRequestLayout &layout = fast(taken_[i])->layout;
        first_row += layout.id_length + fast(taken_[i])->head_length + image_sizes_bytes(layout);
    }
    first_row = ring_aligned(first_row);
    if (first_row > RING_BATCH_BYTES) return Way::python;
    if (!rows.read(taken_.data(), count)) return Way::python;
    std::size_t starts[FAST_INPUTS];
    const std::size_t inputs = fast(taken_[0])->signature->inputs.size();
    const std::size_t nbytes = place_inputs(fast(taken_[0])->signature->inputs, rows, starts);
    if (nbytes > RING_LARGE_BYTES) return Way::python;
    const bool images = rows.has_images();
    if (images) {
        // During slow runs a Python thread decodes the next batch. Quick runs must not wait for decoding.
        if (queue_->may_prefetch.load() || (ahead && rows.decode_ns > RUNS_AHEAD_NS)) return Way::python;
        if (!rows.missing.empty()) return Way::plans;  // picture sizes without a resize plan
        if (!rows.left.empty()) return Way::python;    // pictures that only Python can decode
    }
    const bool small = nbytes <= RING_BATCH_BYTES - first_row;
    Block *const block = small ? nullptr : ring_->lease(nbytes);
    if (!small && block == nullptr) return Way::python;
    const int large = small ? -1 : ring_->number_of(block);
    unsigned char *to[FAST_INPUTS];
    for (std::size_t i = 0; i < inputs; ++i) to[i] = (small ? slot + first_row : block->data) + starts[i];
    rows.write(to);
    const bool complete = rows.left.empty();  // `write` adds pictures that its decoder rejected
    // The process's use of the large slot is counted before this side's reference is released.
    if (!small && complete) ring_->name(large);
    if (!small) process_pool().release(block);
    if (!complete) return Way::python;

    RingRun head{};
    made.requests.swap(taken_);  // both vectors have room for a batch, so that nothing is allocated
    made.requests.resize(count);
    for (Request *request : made.requests) retain(request);  // the queue's reference ends with the request
    const unsigned char *const text_end = write_records(slot + sizeof head, made.requests);
    head.number = number;
    head.rows = made.rows = rows.rows;
    head.row_length = rows.row_length;
    head.requests = static_cast<std::uint32_t>(count);
    head.inputs = static_cast<std::uint32_t>(inputs);
    head.text_bytes = static_cast<std::uint32_t>(text_end - slot - sizeof head);
    head.first_row = small ? static_cast<std::uint32_t>(first_row) : 0;
    head.large = static_cast<std::uint32_t>(large + 1);
    std::memcpy(slot, &head, sizeof head);
    made.number = number;
    made.large = large;
    made.images = images;
    made.started = false;
    made.deadline_ns = NEVER;
    made.dispatched_ns = now_ns();
    const bool assembled = count > 1 || images || rows.row_length != 0;
    made.assemble_ns = assembled ? static_cast<std::uint64_t>(made.dispatched_ns - began) : 0;
    put_ = number;
    ring_->used.store(true, std::memory_order_relaxed);
    RingControl &control = ring_->control();
    control.dispatched.store(number);
    if (control.process_sleeps.load() != 0 && control.process_sleeps.exchange(0) != 0) ring_bell(channel_);
    return Way::ring;
}

// Afterwards `batch` has the first `count` requests of `taken_`.
Served RingDispatcher::give_to_python(std::size_t count) noexcept {
    batch.release_requests();
    batch.requests.assign(taken_.begin(), taken_.begin() + static_cast<std::ptrdiff_t>(count));
    for (Request *request : batch.requests) retain(request);
    return Served::requests;
}

// Records that the handler has begun the batch: its requests now run, with the batch's deadline. `began_ns` is the
// process's time, and 0 if it is unknown.
void RingDispatcher::start(DispatchedRun &started, std::int64_t began_ns, const DispatchTerms &terms) noexcept {
    started.started = true;
    started.began_ns = std::clamp(began_ns, std::max(started.dispatched_ns, landed_ns_), now_ns());
    unsigned char *const alive = marks_.data();
    const std::size_t count = started.requests.size();
    for (Request *request : started.requests)
        if (request->started_ns == 0) request->started_ns = started.began_ns;
    queue_->start(started.requests.data(), count, alive);
    std::int64_t deadline = 0;
    for (std::size_t i = 0; i < count; ++i)
        if (alive[i]) deadline = std::max(deadline, started.requests[i]->deadline_ns);
    // If all clients have gone, use the model's timeout: that is no reason to end the process at once.
    if (deadline == 0) {
        const std::int64_t timeout = fast(started.requests[0])->signature->timeout_ns;
        deadline = timeout > 0 ? started.began_ns + timeout : NEVER;
    }
    if (terms.run_timeout_ns > 0) deadline = std::min(deadline, started.began_ns + terms.run_timeout_ns);
    started.deadline_ns = deadline;
}

// The most batches in the ring: as many as the handler runs in RUNS_AHEAD_NS.
std::uint64_t RingDispatcher::depth() const noexcept {
    return static_cast<std::uint64_t>(
        std::clamp<std::int64_t>(RUNS_AHEAD_NS / std::max<std::int64_t>(ran_ns_, 1), 1, RING_SLOTS));
}

// Dispatches further batches while the handler runs the first.
void RingDispatcher::fill(const DispatchTerms &terms) noexcept {
    while (in_ring() < depth()) {
        taken_.resize(room_);
        const std::size_t count = queue_->take_ahead(
            terms.slot, at(landed_ + 1).requests[0]->taken, taken_.data(), room_, terms.max_rows);
        if (count == 0) return;
        if (dispatch(count, true) != Way::ring) {
            queue_->put_back(taken_.data(), count);
            return;
        }
    }
}

// ---- reading answers out of the ring --------------------------------------------------------

void RingDispatcher::hand_over(HandBack reason) noexcept {
    batch.release_requests();
    std::swap(batch, at(landed_ + 1));
    ++landed_;
    why = reason;
}

// Answers batches that the process has completed. False if Python must continue with `batch`.
bool RingDispatcher::land(const DispatchTerms &terms) noexcept {
    const std::uint64_t completed = ring_->control().completed.load();
    // `completed` may lag by one batch, because Python may finish a batch before the process counts it.
    const bool sane = completed + 1 >= landed_ && completed <= put_;
    if (!sane && in_ring() == 0) return true;  // no batch to report it with: the next batch is handed over as malformed
    while (landed_ < completed || !sane) {
        DispatchedRun &first = at(landed_ + 1);
        fault = sane ? ring_->read_answer(first.number, &answer) : "batches were completed that were not dispatched";
        if (!first.started) start(first, fault == nullptr ? answer.began_ns : 0, terms);
        if (fault != nullptr) {
            hand_over(HandBack::malformed);
            return false;
        }
        if (answer.form == RING_ON_CHANNEL || !finish(first)) {
            hand_over(answer.form == RING_ON_CHANNEL ? HandBack::on_channel : HandBack::outputs);
            return false;
        }
        first.release_requests();
        landed_ns_ = now_ns();
        ++landed_;
    }
    if (in_ring() > 0 && !at(landed_ + 1).started) start(at(landed_ + 1), 0, terms);
    return true;
}

// Answers the requests of a batch. False if `answer_batch` leaves them to Python.
bool RingDispatcher::finish(DispatchedRun &done) noexcept {
    const std::size_t count = done.requests.size();
    ReplyPart parts[RING_OUTPUTS];
    std::ptrdiff_t shapes[RING_OUTPUTS][MAX_RANK];
    for (std::uint32_t i = 0; i < answer.outputs; ++i) {
        const RingOutput &output = answer.output[i];
        ReplyPart &part = parts[i];
        std::copy(output.shape, output.shape + output.rank, shapes[i]);
        part.name = output.name;
        part.name_length = output.name_length;
        part.type = static_cast<Datatype>(output.datatype);
        part.datatype = DATATYPES[output.datatype].name;
        part.datatype_length = DATATYPES[output.datatype].name_length;
        part.data = answered_.get() + output.offset;
        part.shape = shapes[i];
        part.rank = output.rank;
        if (!set_row_bytes(&part, output.nbytes, done.rows, count == 1)) return false;
        // Copied, so that the process cannot change the bytes between checking and sending.
        std::memcpy(answered_.get() + output.offset, ring_->answer_rows(done.number) + output.offset, output.nbytes);
    }
    // The process writes all of its times. Neither a time nor the sum of two is trusted to be in range.
    const std::uint64_t reported =
        static_cast<std::uint64_t>(answer.ended_ns) - static_cast<std::uint64_t>(answer.began_ns);
    const std::int64_t ran = std::clamp<std::int64_t>(static_cast<std::int64_t>(reported), 0, now_ns() - done.began_ns);
    ReplyStage stages[RING_STAGES + 1] = {{"assemble", 8, done.assemble_ns}};
    // Cap reported stage times at the time since the batch was dispatched.
    const std::uint64_t most_ns = static_cast<std::uint64_t>(now_ns() - done.dispatched_ns);
    for (std::uint32_t i = 0; i < answer.stages; ++i) {
        const RingStage &stage = answer.stage[i];
        stages[i + 1] = {stage.name, std::strlen(stage.name), std::min(stage.ns, most_ns)};
    }
    const FastReply reply{parts, static_cast<int>(answer.outputs), stages, static_cast<int>(answer.stages) + 1,
                           static_cast<std::uint64_t>(ran)};
    if (!answer_batch(queue_, sums_, done.requests.data(), count, marks_.data(), reply)) return false;
    ran_ns_ += (ran - ran_ns_) / 8;  // an average of the last runs
    if (ran > RUNS_AHEAD_NS) ran_ns_ = std::max(ran_ns_, ran);
    if (done.images && assembles_beside_run(ran, static_cast<std::int64_t>(done.assemble_ns)))
        queue_->may_prefetch.store(true);
    regroup_ns_ = regroup_delay_ns(done.rows, ran);
    return true;
}

void RingDispatcher::put_back() noexcept { put_back_from(landed_ + 1); }

// Begins with the newest batch, so that the requests are back in the queue in their original order.
void RingDispatcher::put_back_from(std::uint64_t first) noexcept {
    for (; put_ >= first; --put_) {
        DispatchedRun &left = at(put_);
        taken_.assign(left.requests.begin(), left.requests.end());
        queue_->put_back(taken_.data(), taken_.size());
        left.release_requests();
        if (left.large >= 0) ring_->unname(left.large);
    }
}

// The current batch runs long: returns the later batches to the queue, so that any instance may take them.
void RingDispatcher::take_back() noexcept {
    ran_ns_ = RUNS_AHEAD_NS;  // so that `depth` allows only one batch
    put_back_from(ksrv::take_back(*ring_, landed_ + 1, put_) + 1);
}

// ---- sleeping -------------------------------------------------------------------------------

// Waits until an answer may be ready, or Python must look at the first batch's process or calls.
RingDispatcher::Woke RingDispatcher::wait(std::int64_t look_ns) noexcept {
    RingControl &control = ring_->control();
    const DispatchedRun &first = at(landed_ + 1);
    // With several batches in the ring, sleep until half of them are completed.
    const std::uint64_t target = landed_ + (in_ring() + 1) / 2;
    control.wake_at.store(target);
    control.worker_sleeps.store(1);
    if (control.completed.load() >= target) {
        if (control.worker_sleeps.exchange(0) == 0) wait_for_bell(channel_, 0);  // consume the bell that is on its way
        return Woke::look;
    }
    std::int64_t until = std::min(first.deadline_ns, look_ns);
    if (in_ring() > 1) until = std::min(until, now_ns() + RING_LOOK_NS);
    const Bell bell = wait_for_bell(channel_, until);
    control.worker_sleeps.store(0);
    // Check the deadline after each wake-up, because a process may ring or send without end.
    const bool late = now_ns() >= first.deadline_ns && control.completed.load() <= landed_;
    switch (bell) {
    case BELL_RANG:
    case BELL_INTERRUPTED: return late ? Woke::python : Woke::look;
    case BELL_MESSAGE: return late ? Woke::python : Woke::message;
    case BELL_PASSED: {
        const std::int64_t now = now_ns();
        if (now >= first.deadline_ns) return Woke::python;
        if (now >= look_ns) return Woke::message;
        const bool runs = control.completed.load() <= landed_;
        if (runs && in_ring() > 1 && now - first.began_ns >= TAKE_BACK_NS) take_back();
        return Woke::look;
    }
    default: return Woke::python;
    }
}

}  // namespace ksrv
