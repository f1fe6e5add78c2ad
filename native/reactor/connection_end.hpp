// When the server closes a connection that is in use, so that load balancers can redistribute clients.

#pragma once

#include <cstdint>

#include "reactor/timers.hpp"

namespace ksrv {

struct ConnectionEnd {
    uint64_t age_ns = 0;    // maximum age of a connection; 0: unlimited
    uint64_t requests = 0;  // maximum number of requests on a connection; 0: unlimited

    // When a new connection must end: at its maximum age, plus up to a tenth by its tag. The spread keeps clients that
    // connected together from reconnecting all at once.
    uint64_t at(uint64_t now, uint64_t tag) const noexcept {
        if (age_ns == 0) return Timers::NONE;
        // 0 to 1023, from the highest bits of a product, which are the best mixed
        const uint64_t spread = (tag * 0x9E3779B97F4A7C15u) >> 54;
        return now + age_ns + age_ns / 10240 * spread;
    }

    uint64_t most_requests() const noexcept { return requests ? requests : UINT64_MAX; }
};

}  // namespace ksrv
