// gRPC's words on the wire: status codes, their texts and details, timeouts.

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

// What `grpc-status-details-bin` carries where a call may be made again: google.rpc.Status with a RetryInfo.
// Empty when there is no memory.
std::string retry_details(int status, const std::string &text, uint64_t seconds);

// Bytes as the value of an entry whose name ends in "-bin": base64 without padding.
std::string binary_value(const std::string &bytes);

// Nanoseconds of a `grpc-timeout`: up to eight digits and a unit. False where it is malformed.
bool read_timeout(const char *text, size_t length, uint64_t *nanoseconds) noexcept;

}  // namespace ksrv::grpc
