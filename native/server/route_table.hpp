// The facts about each model that the native server needs: the queue, the signature of fast-path requests, and prepared
// answers.
//
// Python builds a new table when models change, and replaces the old table as a whole. Readers keep a reference to the
// table that they found.

#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/replaceable.hpp"
#include "http/prepared_answer.hpp"
#include "http/request_head.hpp"
#include "queue/request_queue.hpp"
#include "infer/model_signature.hpp"

namespace ksrv {

struct ModelRoute {
    std::string name, version;
    Queue *queue = nullptr;  // referenced by the table
    PreparedAnswer full;  // the answer if the queue is full
    PreparedAnswer metadata, model_ready;  // status 0: Python answers
    uint64_t plain = 0;                     // bits of the plain paths that it has without the app
    ModelSignature *signature = nullptr;    // referenced by the table; null if all requests need Python
};

class RouteTable {
  public:
    // `state`: the number of changes to models that the table includes.
    explicit RouteTable(uint64_t state) : state(state) {}
    ~RouteTable() {
        for (ModelRoute &route : routes_) {
            release(route.queue);
            if (route.signature) route.signature->release();
        }
    }
    RouteTable(const RouteTable &) = delete;
    RouteTable &operator=(const RouteTable &) = delete;

    // Takes over the caller's references to the queue and the signature.
    void add(ModelRoute route) { routes_.push_back(std::move(route)); }

    // Must be called after the last `add`, because `find` searches sorted routes.
    void sort() {
        std::sort(routes_.begin(), routes_.end(), [](const ModelRoute &a, const ModelRoute &b) {
            return a.name != b.name ? a.name < b.name : a.version < b.version;
        });
    }

    const ModelRoute *find(const char *name, size_t name_length, const char *version,
                           size_t version_length) const noexcept {
        const auto compare = [](const std::string &text, const char *with, size_t length) {
            const int order = memcmp(text.data(), with, std::min(text.size(), length));
            return order != 0 ? order : (text.size() > length) - (text.size() < length);
        };
        size_t low = 0, high = routes_.size();
        while (low < high) {
            const size_t middle = (low + high) / 2;
            const ModelRoute &route = routes_[middle];
            int order = compare(route.name, name, name_length);
            if (order == 0) order = compare(route.version, version, version_length);
            if (order == 0) return &route;
            if (order < 0) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return nullptr;
    }

    // The route of the model that a head names, or null. `data` is the begin of the head.
    const ModelRoute *named_by(const unsigned char *data, const Head &head) const noexcept {
        const char *text = reinterpret_cast<const char *>(data);
        return find(text + head.name.offset, head.name.length, text + head.version.offset, head.version.length);
    }

    const uint64_t state;

  private:
    std::vector<ModelRoute> routes_;
};

using Routes = Replaceable<RouteTable>;

}  // namespace ksrv
