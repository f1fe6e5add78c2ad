// Lists of pending decrefs: a thread adds to them and sweeps, while another thread takes them: an empty list must not ask for a
// visit to Python, and no item may be lost.
//
//     pending_decrefs ROUNDS
//
// First every pair of operations: the second runs before each access of the first to an atomic. Then rounds in which
// two threads go through many lists, in one order. Prints how many empty lists asked for a visit after that, and how many items were
// lost.

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

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

constexpr int LISTS = 1000;
constexpr uint64_t LARGE = 2u << 20;  // bytes of an item, which alone is worth a visit

PendingDecrefs<Item> lists[LISTS];
Item items[LISTS];
std::atomic<uint64_t> begun{0}, ended{0};

void wait_for(const std::atomic<uint64_t> &count, uint64_t round) {
    while (count.load() < round) std::this_thread::yield();
}

void add_and_sweep(uint64_t rounds) {
    for (uint64_t round = 1; round <= rounds; ++round) {
        wait_for(begun, round);
        for (int i = 0; i < LISTS; ++i) {
            items[i].next = nullptr;
            lists[i].add(&items[i], LARGE);
            lists[i].sweep();
        }
        ended.store(round);
    }
}

uint64_t count(const Item *item) {
    uint64_t items = 0;
    for (; item; item = item->next) ++items;
    return items;
}

PendingDecrefs<Item> *list = nullptr;  // of the operations below
Item *unused = nullptr;
uint64_t added, taken;

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
                    unused = items;
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

// Takes each list as soon as it has an item, after `looks` at most.
uint64_t take_all(int looks) {
    uint64_t items = 0;
    for (PendingDecrefs<Item> &list : lists) {
        for (int i = 0; i < looks && !list.any(); ++i) {
        }
        items += count(list.take());
    }
    return items;
}

}  // namespace

int main(int, char **arguments) {
    const uint64_t rounds = std::strtoull(arguments[1], nullptr, 10);
    uint64_t stuck = stuck_after_pairs();
    std::thread other(add_and_sweep, rounds);
    for (uint64_t round = 1; round <= rounds; ++round) {
        begun.store(round);
        taken += take_all(1000);
        wait_for(ended, round);
        taken += take_all(1);
        for (const PendingDecrefs<Item> &list : lists) stuck += list.are_many();
    }
    other.join();
    std::printf("%llu stuck, %llu lost\n", static_cast<unsigned long long>(stuck),
                static_cast<unsigned long long>(added + rounds * LISTS - taken));
    return 0;
}
