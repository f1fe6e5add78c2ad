// How connections that speak HTTP/2 are found: by the preface with which they begin (RFC 9113 3.4).

#pragma once

#include <cstdint>

#include "http/connection.hpp"

namespace ksrv {

enum class Preface : uint8_t { none, begun, whole };

// Looks at what has come; only its owner does. Where it has `begun`, the bytes are marked as searched.
Preface look_for_preface(Connection *connection) noexcept;

}  // namespace ksrv
