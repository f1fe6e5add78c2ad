// When the server ends a connection that is in use, so that load balancers spread their clients anew.

#pragma once

#include <cstdint>

#include "reactor/timers.hpp"

namespace ksrv {

struct ConnectionEnd {
    uint64_t age_ns = 0;    // of a connection; 0: any
    uint64_t requests = 0;  // that a connection carries; 0: any number

    // When a connection ends that begins now: at its age, or up to a tenth later, by its tag. Connections that begin
    // together do not end together, for their clients would all come back in one moment.
    uint64_t at(uint64_t now, uint64_t tag) const noexcept {
        if (age_ns == 0) return Timers::NONE;
        const uint64_t spread = (tag * 0x9E3779B97F4A7C15u) >> 54;  // 0 to 1023, from the best bits of a product
        return now + age_ns + age_ns / 10240 * spread;
    }

    uint64_t most_requests() const noexcept { return requests ? requests : UINT64_MAX; }
};

}  // namespace ksrv
