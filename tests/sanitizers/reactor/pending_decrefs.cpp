// Lists of pending decrefs: a thread adds to them and sweeps, while another thread takes them: an empty list must not ask for a
// visit to Python, and no item may be lost.
//
// Tries every pair of operations: the second runs before each access of the first to an atomic. Prints how many empty lists asked for
// a visit after that, and how many items were lost.

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <mutex>

namespace {

thread_local int accesses_left = -1;  // until `other_operation` comes between
thread_local int mutexes_held = 0;    // for which the other operation would wait
void other_operation();

void access() {
    if (!mutexes_held && accesses_left >= 0 && accesses_left-- == 0) other_operation();
}

}  // namespace

namespace std {

template <typename Value> struct interruptible_atomic : atomic<Value> {
    using atomic<Value>::atomic;
    Value load(memory_order order = memory_order_seq_cst) const noexcept {
        access();
        return atomic<Value>::load(order);
    }
    void store(Value value, memory_order order = memory_order_seq_cst) noexcept {
        access();
        atomic<Value>::store(value, order);
    }
    Value exchange(Value value, memory_order order = memory_order_seq_cst) noexcept {
        access();
        return atomic<Value>::exchange(value, order);
    }
    bool compare_exchange_weak(Value &expected, Value value) noexcept {
        access();
        return atomic<Value>::compare_exchange_weak(expected, value);
    }
    Value fetch_add(Value value) noexcept {
        access();
        return atomic<Value>::fetch_add(value);
    }
};

struct interruptible_mutex : mutex {
    void lock() {
        access();
        mutex::lock();
        ++mutexes_held;
    }
    void unlock() {
        --mutexes_held;
        mutex::unlock();
    }
};

}  // namespace std

#define atomic interruptible_atomic
#define mutex interruptible_mutex
#include "reactor/pending_decrefs.hpp"
#undef atomic
#undef mutex

using namespace ksrv;

namespace {

struct Item {
    Item *next = nullptr;
};

constexpr uint64_t LARGE = 2u << 20;  // bytes of an item, which alone is worth a visit

Item items[1000];  // of all pairs of operations

uint64_t count(const Item *item) {
    uint64_t counted = 0;
    for (; item; item = item->next) ++counted;
    return counted;
}

PendingDecrefs<Item> *list = nullptr;  // of the operations below
Item *unused = items;
uint64_t added = 0, taken = 0;

void add() {
    *unused = Item();
    list->add(unused++, LARGE);
    ++added;
}
void sweep() { list->sweep(); }
void take() { taken += count(list->take()); }

void (*second)() = nullptr;
void other_operation() { second(); }

// Returns how many empty lists ask for a visit after two operations on a list with an item or without.
uint64_t stuck_after_pairs() {
    uint64_t stuck = 0;
    for (auto *first : {add, sweep, take})
        for (auto *other : {add, sweep, take})
            for (int begun_with : {0, 1})
                for (int at = 0; at < 10; ++at) {
                    PendingDecrefs<Item> own;
                    list = &own;
                    if (begun_with) add();
                    second = other;
                    accesses_left = at;
                    first();
                    accesses_left = -1;
                    take();
                    stuck += own.are_many();
                }
    return stuck;
}

}  // namespace

int main() {
    const uint64_t stuck = stuck_after_pairs();
    std::printf("%llu stuck, %llu lost\n", static_cast<unsigned long long>(stuck), static_cast<unsigned long long>(added - taken));
    return 0;
}
