// The header list of a call: pseudo-headers, gRPC's own fields, and the metadata, which handlers and logs read as
// lines. Written by the connection's owner while it arrives, and constant once other threads see the call.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/request_id.hpp"
#include "base/small_vector.hpp"

namespace ksrv::grpc {

struct Fault;

enum class Encoding : uint8_t { identity, gzip, deflate, other };

struct CallHead {
    static constexpr uint64_t NO_TIMEOUT = UINT64_MAX;

    // Adds a field. (The caller adds `:path` only if the path is not a known method.) If memory is short, sets `fault`,
    // and drops further fields.
    void add(std::string_view name, std::string_view value) noexcept;
    // Chooses the call's id.
    void identify() noexcept;

    SmallVector<char, 192> text;     // lines of "name: value"
    std::string unknown_path;        // empty if the call has a method
    std::string verb, authority, authorization;
    uint8_t authorizations = 0;      // entries of that name: 0, 1, or 2 for more
    RequestId request_id;
    Encoding encoding = Encoding::identity;
    enum class Type : uint8_t { missing, grpc, other } type = Type::missing;
    const Fault *fault = nullptr;    // the first fault of a field
    uint64_t timeout_ns = NO_TIMEOUT;
    uint64_t deadline_ns = 0;        // 0 if the call has no deadline

  private:
    struct Value {  // in `text`
        size_t at = 0, length = 0, count = 0;
    };

    void add_line(std::string_view name, std::string_view value);
    std::string_view only(const Value &found) const noexcept {
        return found.count == 1 ? std::string_view(text.data() + found.at, found.length) : std::string_view();
    }

    Value id_, trace_;  // of `x-request-id` and `traceparent`
};

}  // namespace ksrv::grpc
