#include "process/batch_ring.hpp"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/clock.hpp"
#include "base/utf8.hpp"
#include "memory/buffer_pool.hpp"

namespace ksrv {

#ifndef MADV_POPULATE_WRITE  // for older headers; before Linux 5.14 the call fails, and no large slot is leased
#define MADV_POPULATE_WRITE 23
#endif

namespace {

void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

}  // namespace

bool is_stage_name(const char (&name)[RING_STAGE_NAME]) noexcept {
    std::size_t length = 0;
    for (; length < RING_STAGE_NAME && name[length] != '\0'; ++length) {
        const char c = name[length];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'))
            return false;
    }
    return length > 0 && length < RING_STAGE_NAME;
}

Ring *Ring::make() noexcept {
    const int fd = make_memfd("ksrv-ring", SIZE, /*taken=*/SMALL, F_SEAL_SHRINK | F_SEAL_GROW);
    if (fd < 0) return nullptr;
    Ring *ring = mapped(fd, 0);
    if (ring == nullptr) {
        close(fd);
        return nullptr;
    }
    ring->fd_ = fd;
    new (ring->data_) RingControl{};
    return ring;
}

// The process writes the large slots that follow the worker's slots.
Ring *Ring::map(int fd) noexcept { return mapped(fd, RING_LARGE_SLOTS); }

Ring *Ring::mapped(int fd, int first_written) noexcept {
    struct stat status;
    if (fstat(fd, &status) != 0 || static_cast<std::uint64_t>(status.st_size) != SIZE) return nullptr;
    void *data = mmap(nullptr, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) return nullptr;
    Ring *ring = new (std::nothrow) Ring(static_cast<unsigned char *>(data), first_written);
    if (ring == nullptr) munmap(data, SIZE);
    return ring;
}

Ring::Ring(unsigned char *data, int first_written) noexcept : data_(data), first_written_(first_written) {
    for (int i = 0; i < RING_ALL_LARGE_SLOTS; ++i) {
        LargeSlot &slot = slots_[i];
        slot.data = large(i);
        slot.size = slot.capacity = RING_LARGE_BYTES;
        slot.backend = BACKEND_SLOT;
        slot.generation = process_pool().generation();
        slot.returned = return_slot;
        slot.ring = this;
    }
}

void Ring::release() noexcept {
    if (users_.fetch_sub(1) == 1) delete this;
}

Ring::~Ring() {
    close_fd();
    munmap(data_, SIZE);
}

void Ring::close_fd() noexcept {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
}

// ---- large slots ----------------------------------------------------------------------------

// Allocates the pages now. If memory were short on first access, the process would get SIGBUS.
bool Ring::reserve(LargeSlot &slot, std::size_t nbytes) noexcept {
    if (nbytes <= slot.reserved) return true;
    const std::size_t until = std::min((nbytes + 4095) & ~std::size_t{4095}, RING_LARGE_BYTES);
    if (madvise(slot.data + slot.reserved, until - slot.reserved, MADV_POPULATE_WRITE) != 0) return false;
    slot.reserved = until;
    return true;
}

Block *Ring::lease(std::size_t nbytes) noexcept {
    if (nbytes > RING_LARGE_BYTES) return nullptr;
    for (int i = first_written_; i < first_written_ + RING_LARGE_SLOTS; ++i) {
        LargeSlot &slot = slots_[i];
        long unused = 0;
        if (!slot.refs.compare_exchange_strong(unused, 1)) continue;
        // Only now, because another thread may have leased, sent and released the slot in the meantime.
        if (control().held[i].load() != 0 || !reserve(slot, nbytes)) {
            slot.refs.store(0);
            continue;
        }
        slot.size = nbytes;
        users_.fetch_add(1);
        return &slot;
    }
    return nullptr;
}

int Ring::number_of(const Block *block) const noexcept {
    for (int i = first_written_; i < first_written_ + RING_LARGE_SLOTS; ++i)
        if (block == &slots_[i]) return i;
    return -1;
}

Block *Ring::receive(std::uint32_t number) noexcept {
    const std::uint32_t first = first_written_ == 0 ? RING_LARGE_SLOTS : 0;
    if (number < first || number >= first + RING_LARGE_SLOTS) return nullptr;
    LargeSlot &slot = slots_[number];
    const std::lock_guard<std::mutex> guard(receiving_);
    ++slot.received;
    if (slot.refs.fetch_add(1) == 0) users_.fetch_add(1);
    return &slot;
}

// Called after the last release of a large slot on this side.
void Ring::return_slot(Block *block) noexcept {
    LargeSlot &slot = *static_cast<LargeSlot *>(block);
    Ring *const ring = slot.ring;
    if (slot.generation != process_pool().generation()) return;  // a forked child must not change its parent's counts
    {
        const std::lock_guard<std::mutex> guard(ring->receiving_);
        if (slot.received != 0 && slot.refs.load() == 0) {  // else it was received again in the meantime
            ring->control().held[&slot - ring->slots_].fetch_sub(slot.received);
            slot.received = 0;
        }
    }
    ring->release();
}

const char *Ring::read_answer(std::uint64_t number, RingAnswer *answer) noexcept {
    const unsigned char *from = this->answer(number);
    std::memcpy(answer, from, offsetof(RingAnswer, stage));
    if (answer->number != number) return "it belongs to another batch";
    if (answer->form == RING_ON_CHANNEL) return nullptr;
    if (answer->form != RING_OUTPUTS_HERE || answer->outputs > RING_OUTPUTS ||
        answer->stages > RING_STAGES)
        return "it has an unknown form, or too many outputs or stages";
    std::memcpy(answer->stage, from + offsetof(RingAnswer, stage), answer->stages * sizeof(RingStage));
    std::memcpy(answer->output, from + offsetof(RingAnswer, output), answer->outputs * sizeof(RingOutput));
    for (std::uint32_t i = 0; i < answer->stages; ++i)
        if (!is_stage_name(answer->stage[i].name)) return "the name of a stage is not a word";
    for (std::uint32_t i = 0; i < answer->outputs; ++i) {
        const RingOutput &output = answer->output[i];
        if (output.name_length == 0 || output.name_length > RING_NAME ||
            !is_utf8(reinterpret_cast<const unsigned char *>(output.name), output.name_length))
            return "the name of an output is not valid UTF-8";
        if (output.datatype >= DT_BYTES) return "an output has an unknown datatype";
        std::uint64_t elements = 0, nbytes = 0;
        if (!checked_nbytes(output.shape, output.rank, item_size_of(static_cast<Datatype>(output.datatype)), &elements,
                            &nbytes) ||
            nbytes != output.nbytes)
            return "the size of an output does not match its shape";
        if (output.offset > RING_ANSWER_BYTES || nbytes > RING_ANSWER_BYTES - output.offset)
            return "an output exceeds the memory for answers";
    }
    return nullptr;
}

void ring_bell(int channel) noexcept {
    const char one = 1;
    while (send(channel, &one, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
        // The kernel has no memory for the byte. Retry, because the other side sleeps until it arrives.
        if (errno == ENOBUFS || errno == ENOMEM) sched_yield();
        else if (errno != EINTR) return;
    }
}

Bell wait_for_bell(int channel, std::int64_t deadline_ns) noexcept {
    for (;;) {
        const std::int64_t left = std::max<std::int64_t>(deadline_ns - now_ns(), 0);
        const timespec timeout = {static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
        pollfd entry = {channel, POLLIN, 0};
        const int ready = ppoll(&entry, 1, deadline_ns == NEVER ? nullptr : &timeout, nullptr);
        if (ready < 0) return errno == EINTR ? BELL_INTERRUPTED : BELL_CLOSED;
        if (ready == 0) {
            if (left == 0) return BELL_PASSED;
            continue;
        }
        unsigned char room[1] = {};
        const ssize_t length = recv(channel, room, sizeof room, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
        if (length < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (length <= 0) return BELL_CLOSED;
        if (length > 1) return BELL_MESSAGE;
        (void)!recv(channel, room, sizeof room, MSG_DONTWAIT);
        return BELL_RANG;
    }
}

std::uint64_t take_back(Ring &ring, std::uint64_t kept, std::uint64_t dispatched) noexcept {
    RingControl &control = ring.control();
    control.dispatched.store(kept);
    const std::uint64_t began = control.began.load();
    if (began <= kept) return kept;
    // The process began more batches in the meantime. It finds none after `began`.
    kept = began < dispatched ? began : dispatched;
    control.dispatched.store(kept);
    return kept;
}

Bell wait_for_batch(Ring &ring, int channel, std::uint64_t completed, std::int64_t spin_ns) noexcept {
    RingControl &control = ring.control();
    const auto is_there = [&] {
        if (control.dispatched.load() <= completed) return false;
        control.began.store(completed + 1);
        if (control.dispatched.load() > completed) return true;
        control.began.store(completed);  // the worker took the batch back
        return false;
    };
    if (is_there()) return BELL_RANG;
    if (spin_ns > 0) {
        const std::int64_t until = now_ns() + spin_ns;
        do {
            for (int i = 0; i < 16; ++i) relax();
            if (is_there()) return BELL_RANG;
        } while (now_ns() < until);
    }
    for (;;) {
        control.process_sleeps.store(1);
        if (is_there()) {
            // Consume the bell that is on its way.
            if (control.process_sleeps.exchange(0) == 0) wait_for_bell(channel, 0);
            return BELL_RANG;
        }
        const Bell bell = wait_for_bell(channel, NEVER);
        control.process_sleeps.store(0);
        if (is_there()) return BELL_RANG;
        if (bell != BELL_RANG) return bell;
    }
}

void complete_batch(Ring &ring, int channel, std::uint64_t number) noexcept {
    RingControl &control = ring.control();
    control.completed.store(number);
    if (control.worker_sleeps.load() != 0 && number >= control.wake_at.load() &&
        control.worker_sleeps.exchange(0) != 0)
        ring_bell(channel);
}

}  // namespace ksrv
