// Facts about each model that need no Python: whether its queue is full, before a body is read, and the answers that
// describe it.
//
// A route only looks at the queue; the queue decides when a request is pushed. The table is replaced as a whole when
// models change, and readers keep a reference to the table that they found.

#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
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
    PreparedAnswer full;
    PreparedAnswer metadata, model_ready;  // status 0: Python answers
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

    void sort() {
        std::sort(routes_.begin(), routes_.end(),
                  [](const ModelRoute &a, const ModelRoute &b) { return key_of(a) < key_of(b); });
    }

    const ModelRoute *find(const char *name, size_t name_length, const char *version,
                     size_t version_length) const noexcept {
        const Key key({name, name_length}, {version, version_length});
        const auto found = std::lower_bound(routes_.begin(), routes_.end(), key, [](const ModelRoute &route, const Key &than) {
            return key_of(route) < than;
        });
        return found != routes_.end() && key_of(*found) == key ? &*found : nullptr;
    }

    // The route of the model that a head names, or null. `data` is the begin of the head.
    const ModelRoute *named_by(const unsigned char *data, const Head &head) const noexcept {
        const char *text = reinterpret_cast<const char *>(data);
        return find(text + head.name.offset, head.name.length, text + head.version.offset,
                    head.version.length);
    }

    const uint64_t state;

  private:
    using Key = std::pair<std::string_view, std::string_view>;
    static Key key_of(const ModelRoute &route) noexcept { return {route.name, route.version}; }

    std::vector<ModelRoute> routes_;
};

using Routes = Replaceable<RouteTable>;

}  // namespace ksrv
