// Sorts the fields of a call's header list into `CallHead`.

#include "grpc/call_head.hpp"

#include <cstring>
#include <new>

#include "grpc/status.hpp"

namespace ksrv::grpc {

namespace {

bool starts_with(std::string_view text, std::string_view prefix) noexcept {
    return text.substr(0, prefix.size()) == prefix;
}

bool is_grpc(std::string_view type) noexcept {
    constexpr std::string_view GRPC = "application/grpc";
    if (!starts_with(type, GRPC)) return false;
    return type.size() == GRPC.size() || type[GRPC.size()] == '+' || type[GRPC.size()] == ';';
}

Encoding encoding_of(std::string_view name) noexcept {
    return name == "identity"  ? Encoding::identity
           : name == "gzip"    ? Encoding::gzip
           : name == "deflate" ? Encoding::deflate
                               : Encoding::other;
}

}  // namespace

void CallHead::add(std::string_view name, std::string_view value) noexcept {
    if (fault == &fault::HEAD_LOST) return;
    try {
        if (name == ":method") {
            verb = value;
        } else if (name == ":path") {  // The caller adds ":path" only if no method has this path.
            unknown_path = value;
        } else if (name == ":authority") {
            authority = value;
        } else if (name == "content-type") {
            // A single content-type that is not gRPC's makes the call a call of another type, whatever the others are.
            type = is_grpc(value) && type != Type::other ? Type::grpc : Type::other;
        } else if (name == "grpc-timeout") {
            if (!read_timeout(value.data(), value.size(), &timeout_ns)) fault = &fault::BAD_TIMEOUT;
        } else if (name == "grpc-encoding") {
            encoding = encoding_of(value);
        } else if (name[0] != ':' && name != "te" && !starts_with(name, "grpc-")) {
            add_line(name, value);
        }
    } catch (const std::bad_alloc &) {
        fault = &fault::HEAD_LOST;
    }
}

// Writes a line of an HTTP/1.1 head, so that the same parser reads the metadata of both protocols.
void CallHead::add_line(std::string_view name, std::string_view value) {
    if (name == "authorization") {
        authorization = value;
        authorizations = authorizations ? 2 : 1;
    }
    const size_t value_at = text.size() + name.size() + 2;
    char *const line = text.extend(name.size() + value.size() + 4);
    if (!line) throw std::bad_alloc();
    memcpy(line, name.data(), name.size());
    memcpy(line + name.size(), ": ", 2);
    memcpy(line + name.size() + 2, value.data(), value.size());
    memcpy(line + name.size() + 2 + value.size(), "\r\n", 2);
    if (name == "x-request-id") id_ = {value_at, value.size(), id_.count + 1};
    if (name == "traceparent") trace_ = {value_at, value.size(), trace_.count + 1};
}

void CallHead::identify() noexcept {
    const std::string_view id = only(id_), trace = only(trace_);
    choose_request_id(&request_id, id.data(), id.size(), trace.data(), trace.size());
}

}  // namespace ksrv::grpc
