// gRPC's words on the wire: status codes, percent-encoded texts, timeouts.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ksrv::grpc {

enum Status : int {
    OK = 0,
    CANCELLED = 1,
    UNKNOWN = 2,
    INVALID_ARGUMENT = 3,
    DEADLINE_EXCEEDED = 4,
    RESOURCE_EXHAUSTED = 8,
    UNIMPLEMENTED = 12,
    INTERNAL = 13,
    UNAVAILABLE = 14,
    UNAUTHENTICATED = 16,
};

// A text as `grpc-message` carries it.
std::string percent_encoded(const char *text, size_t length);

// Nanoseconds of a `grpc-timeout`: up to eight digits and a unit. False where it is malformed.
bool read_timeout(const char *text, size_t length, uint64_t *nanoseconds) noexcept;

}  // namespace ksrv::grpc
