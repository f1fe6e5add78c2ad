// The limits of connections and transfers that the server's settings choose, for all protocols.
//
// Read by any thread, and constant once connections arrive.

#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "reactor/timers.hpp"

namespace ksrv {

// The defaults are for programs without settings.
struct ConnectionLimits {
    uint64_t connections = 1000;        // open at a time
    uint64_t idle_ns = 75'000'000'000;  // between messages; 0: close after every answer
    uint64_t head_ns = 10'000'000'000;  // for receiving a head
    uint64_t grace_ns = 10'000'000'000;  // for bodies and answers, before the rate is enforced
    uint64_t rate = 4096;               // minimum bytes per second, received or read by the peer; not 0
    uint64_t transfer_s = 300;          // after the grace period, for a body or an answer of any size; not 0
    // When a connection in use is closed, so that load balancers can redistribute clients. 0: unlimited.
    uint64_t age_ns = 0;
    uint64_t requests = 0;

    // The minimum rate, in bytes per second, of a transfer of `whole` bytes.
    uint64_t least_rate(uint64_t whole) const noexcept { return std::max(whole / transfer_s, rate); }

    // Whether a peer that has read `bytes` in `elapsed_ns` reads an answer fast enough.
    bool keeps_up(uint64_t bytes, uint64_t elapsed_ns, uint64_t whole) const noexcept {
        return bytes >= elapsed_ns / 1'000'000u * least_rate(whole) / 1000u;
    }

    // When a new connection must end: at its maximum age, plus up to a tenth by its tag. The spread keeps clients that
    // connected together from reconnecting all at once.
    uint64_t end(uint64_t now, uint64_t tag) const noexcept {
        if (age_ns == 0) return Timers::NONE;
        // 0 to 1023: the highest bits of a product with 2^64 / golden ratio, which are the best mixed.
        const uint64_t spread = (tag * 0x9E3779B97F4A7C15u) >> 54;
        return now + age_ns + age_ns / (10 * 1024) * spread;
    }

    uint64_t most_requests() const noexcept { return requests ? requests : UINT64_MAX; }
};

// Maps a setting of ServerSettings (ksrv/server/settings.py) to its field of ConnectionLimits.
struct ConnectionSetting {
    static constexpr double SECONDS = 1e9, MOST = 9e18;

    void set(ConnectionLimits *limits, double value) const noexcept {
        limits->*field = static_cast<uint64_t>(std::min(value * unit, MOST));
    }

    const char *name;
    uint64_t ConnectionLimits::*field;
    double unit;  // the field's value for 1 of the setting
};

inline constexpr ConnectionSetting CONNECTION_SETTINGS[] = {
    {"max_connections", &ConnectionLimits::connections, 1},
    {"keepalive", &ConnectionLimits::idle_ns, ConnectionSetting::SECONDS},
    {"head_timeout", &ConnectionLimits::head_ns, ConnectionSetting::SECONDS},
    {"transfer_grace", &ConnectionLimits::grace_ns, ConnectionSetting::SECONDS},
    {"min_transfer_rate", &ConnectionLimits::rate, 1},
    {"transfer_timeout", &ConnectionLimits::transfer_s, 1},
    {"max_connection_age", &ConnectionLimits::age_ns, ConnectionSetting::SECONDS},
    {"max_connection_requests", &ConnectionLimits::requests, 1},
};
inline constexpr size_t CONNECTION_SETTINGS_COUNT = std::size(CONNECTION_SETTINGS);

}  // namespace ksrv
