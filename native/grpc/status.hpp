// The status codes of gRPC, the faults for which the server ends a call without asking Python, and their wire form.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "reactor/counters.hpp"

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

struct Fault {
    ServerCounter counter;  // counts the fault; or NOT_COUNTED
    int status;         // of gRPC; from HTTP_STATUS (call.hpp) on an HTTP status, for a request that is not gRPC
    bool may_be_retried;
    const char *text;   // a printf format, whose arguments are doubles: `Streams::refuse` passes any number as a double
};

namespace fault {

constexpr ServerCounter NOT_COUNTED = ServerCounter::COUNT;

inline constexpr Fault HEAD_TOO_LARGE{ServerCounter::too_large, RESOURCE_EXHAUSTED, false,
    "the call's metadata is above the limit --limits-head (%.0f bytes)"};
inline constexpr Fault HEAD_LOST{NOT_COUNTED, RESOURCE_EXHAUSTED, true,
    "not enough memory for the call's metadata; try again later"};
inline constexpr Fault WRONG_VERB{NOT_COUNTED, 405, false, ""};
inline constexpr Fault WRONG_TYPE{NOT_COUNTED, 415, false, ""};
inline constexpr Fault UNKNOWN_METHOD{NOT_COUNTED, UNIMPLEMENTED, false, "Method not found!"};
inline constexpr Fault BAD_TIMEOUT{NOT_COUNTED, INTERNAL, false, "the call's grpc-timeout is malformed"};
inline constexpr Fault BAD_PREFIX{NOT_COUNTED, INTERNAL, false,
    "a message begins with the byte %.0f, not with 0 or 1 and the message's length in 4 bytes"};
inline constexpr Fault UNREADABLE_ENCODING{NOT_COUNTED, UNIMPLEMENTED, false,
    "the message is compressed in a way that this server does not read; grpc-accept-encoding says what it reads"};
inline constexpr Fault MISSING_ENCODING{NOT_COUNTED, INTERNAL, false,
    "the message is marked as compressed, and the call has no grpc-encoding; send both or none"};
inline constexpr Fault MESSAGE_ABOVE_METHOD{ServerCounter::too_large, RESOURCE_EXHAUSTED, false,
    "the request message has more than %.0f bytes, the limit of this method"};
inline constexpr Fault MESSAGE_ABOVE_BODY{ServerCounter::too_large, RESOURCE_EXHAUSTED, false,
    "the message has %.0f bytes, above the limit --limits-body (%.0f bytes)"};
inline constexpr Fault MESSAGE_ABOVE_BUDGET{ServerCounter::too_large, RESOURCE_EXHAUSTED, false,
    "the message has %.0f bytes, above the limit --limits-in-flight (%.0f bytes)"};
inline constexpr Fault MESSAGE_LOST{NOT_COUNTED, RESOURCE_EXHAUSTED, true,
    "not enough memory for the message; try again later"};
inline constexpr Fault IN_FLIGHT_FULL{ServerCounter::bytes_in_flight, RESOURCE_EXHAUSTED, true,
    "%.0f more bytes would take the requests in flight to %.0f bytes, above the limit --limits-in-flight "
    "(%.0f bytes)"};
inline constexpr Fault TOO_MANY_CALLS{ServerCounter::calls, RESOURCE_EXHAUSTED, true,
    "%.0f calls are open, the most of this server; send fewer at a time"};
inline constexpr Fault TOO_MANY_WAITING{ServerCounter::calls, RESOURCE_EXHAUSTED, true,
    "%.0f calls wait for their messages, which is the limit, and this connection has the most of them; "
    "send fewer calls at a time"};
inline constexpr Fault TOO_MANY_MESSAGES{ServerCounter::calls, RESOURCE_EXHAUSTED, false,
    "%.0f messages of the stream wait to be taken, which is the most; take answers before more is sent"};
inline constexpr Fault PARTIAL_MESSAGE{NOT_COUNTED, INVALID_ARGUMENT, false,
    "the call ended within a message; send the whole message before the end of the call"};
inline constexpr Fault MISSING_MESSAGE{NOT_COUNTED, INVALID_ARGUMENT, false,
    "the call requires exactly one request message"};
inline constexpr Fault SECOND_MESSAGE{NOT_COUNTED, UNIMPLEMENTED, false,
    "the call requires exactly one request message, and further bytes came"};
inline constexpr Fault SLOW_MESSAGE{ServerCounter::too_slow, DEADLINE_EXCEEDED, false,
    "no whole request message arrived within %.3g s; it must begin in time and make %.0f bytes a second, "
    "which the settings 'min_transfer_rate' and 'transfer_timeout' ask for"};
inline constexpr Fault LATE{NOT_COUNTED, DEADLINE_EXCEEDED, false, "Deadline Exceeded"};
inline constexpr Fault STOPPING{NOT_COUNTED, UNAVAILABLE, true,
    "the server stops, and no whole request message has come; send it again"};

}  // namespace fault

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
