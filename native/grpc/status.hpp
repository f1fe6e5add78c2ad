// The wire form of gRPC status codes, their texts and details, and timeouts.

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

// Encodes a text for `grpc-message`.
std::string percent_encoded(const char *text, size_t length);

// The value of `grpc-status-details-bin` for a call that may be retried: a google.rpc.Status with a RetryInfo. Empty if
// memory is short.
std::string retry_details(int status, const std::string &text, uint64_t seconds);

// Encodes bytes for an entry whose name ends in "-bin": base64 without padding.
std::string binary_value(const std::string &bytes);

// Nanoseconds of a `grpc-timeout`: up to eight digits and a unit. False if it is malformed.
bool read_timeout(const char *text, size_t length, uint64_t *nanoseconds) noexcept;

}  // namespace ksrv::grpc
