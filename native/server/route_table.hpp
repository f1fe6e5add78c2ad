// Which models' queues are full, asked before a body is read and without Python.
//
// A gate only looks: the queue itself decides when a request is pushed. The table is replaced as a
// whole when models come and go, and readers hold the one that they found.

#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "http/ready_answer.hpp"
#include "queue/request_queue.hpp"
#include "v2/model_signature.hpp"

namespace ksrv {

struct Gate {
    std::string name, version;
    Queue *queue = nullptr;  // held by the table
    ReadyAnswer full;
    Plan *plan = nullptr;    // held by the table; null where every request goes through Python
};

class GateTable {
  public:
    GateTable() = default;
    ~GateTable() {
        for (Gate &gate : gates_) {
            release(gate.queue);
            if (gate.plan) gate.plan->release();
        }
    }
    GateTable(const GateTable &) = delete;
    GateTable &operator=(const GateTable &) = delete;

    // Takes over the caller's references to the queue and the plan.
    void add(Gate gate) { gates_.push_back(std::move(gate)); }

    void sort() {
        std::sort(gates_.begin(), gates_.end(), [](const Gate &a, const Gate &b) {
            return a.name != b.name ? a.name < b.name : a.version < b.version;
        });
    }

    const Gate *find(const char *name, size_t name_length, const char *version,
                     size_t version_length) const noexcept {
        const auto compare = [](const std::string &text, const char *with, size_t length) {
            const int order = memcmp(text.data(), with, std::min(text.size(), length));
            return order != 0 ? order : (text.size() > length) - (text.size() < length);
        };
        size_t low = 0, high = gates_.size();
        while (low < high) {
            const size_t middle = (low + high) / 2;
            const Gate &gate = gates_[middle];
            int order = compare(gate.name, name, name_length);
            if (order == 0) order = compare(gate.version, version, version_length);
            if (order == 0) return &gate;
            if (order < 0) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return nullptr;
    }

  private:
    std::vector<Gate> gates_;
};

class Gates {
  public:
    void replace(std::shared_ptr<const GateTable> table) noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        table_.swap(table);  // the old one goes when its last reader lets go
    }

    std::shared_ptr<const GateTable> table() noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        return table_;
    }

  private:
    std::mutex mutex_;
    std::shared_ptr<const GateTable> table_;
};

}  // namespace ksrv
