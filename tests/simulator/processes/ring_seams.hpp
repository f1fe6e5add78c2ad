// The ring of a handler process, with a seam before each access to its control words.
//
// Strategy: two processes meet in these words alone, between which no function of the C library is called. So the sources of
// the ring and of its dispatcher are compiled here once more, unchanged, with another word for std::atomic, and the
// linker takes none of the core's. Accesses are sequentially consistent, as one thread runs at a time: the memory's order is the work of the
// thread sanitizer. A program includes this once.

#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "base/clock.hpp"
#include "base/utf8.hpp"
#include "memory/buffer_pool.hpp"
#include "queue/completions.hpp"
#include "server/fast_response.hpp"
#include "server/fast_rows.hpp"
#include "../machine.hpp"

namespace std {

template <typename T> struct scheduled_atomic {
    static constexpr bool is_always_lock_free = atomic<T>::is_always_lock_free;

    constexpr scheduled_atomic(T value = {}) : plain(value) {}
    T load() noexcept {
        sim::machine().word_seam();
        return plain.load();
    }
    void store(T value, memory_order = memory_order_seq_cst) noexcept {
        sim::machine().word_seam();
        plain.store(value);
    }
    T exchange(T value) noexcept {
        sim::machine().word_seam();
        return plain.exchange(value);
    }
    T fetch_add(T value) noexcept {
        sim::machine().word_seam();
        return plain.fetch_add(value);
    }
    T fetch_sub(T value) noexcept {
        sim::machine().word_seam();
        return plain.fetch_sub(value);
    }

    atomic<T> plain;
};

}  // namespace std

#define atomic scheduled_atomic
#include "process/batch_ring.cpp"  // NOLINT
#undef atomic
#include "process/batch_dispatcher.cpp"  // NOLINT
