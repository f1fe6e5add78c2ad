// The target of a request (RFC 9112 3.2): its forms, and the route that a path names. Only for request_head.cpp.
//
// The functions move `at` through the bytes up to `end`. `data` is the begin of the head, from which offsets count.

#pragma once

#include <cstring>

#include "http/characters.hpp"
#include "http/request_head.hpp"

namespace ksrv {

// Moves `at` past a text, if the text is there.
template <size_t N>
static bool literal(const unsigned char *&at, const unsigned char *end, const char (&text)[N]) noexcept {
    if (static_cast<size_t>(end - at) < N - 1 || memcmp(at, text, N - 1) != 0) return false;
    at += N - 1;
    return true;
}

// Parses a name up to `/`. False if it is empty, longer than 63 bytes, or has invalid bytes. `.` and `..` are not
// names, because a proxy that normalises the path would take them for another path.
static bool segment(const unsigned char *&at, const unsigned char *end, const unsigned char *data,
                    Span *span) noexcept {
    const unsigned char *start = at;
    while (at < end && is(*at, NAME)) ++at;
    const size_t length = static_cast<size_t>(at - start);
    if (length == 0 || length > 63) return false;
    if (start[0] == '.' && (length == 1 || (length == 2 && start[1] == '.'))) return false;
    span->offset = static_cast<uint32_t>(start - data);
    span->length = static_cast<uint32_t>(length);
    return true;
}

// Whether a GET or HEAD can be answered without a handler: metadata, readiness, statistics, metrics.
static bool is_question(const unsigned char *at, const unsigned char *end) noexcept {
    if (!literal(at, end, "/v2") && !literal(at, end, "/v1") && !literal(at, end, "/metrics") &&
        !literal(at, end, "/ping"))
        return false;
    return at == end || *at == '/' || *at == '?';
}

// The route of a target. Route::none if it has none.
static Route target_route(bool post, const unsigned char *at, const unsigned char *end,
                          const unsigned char *data, Head *head) noexcept {
    if (!literal(at, end, "/v2")) return Route::none;
    if (at == end) return post ? Route::none : Route::server;
    if (!post && literal(at, end, "/health/")) {
        if (literal(at, end, "live")) return at == end ? Route::live : Route::none;
        if (literal(at, end, "ready")) return at == end ? Route::ready : Route::none;
        return Route::none;
    }
    Span name, version;
    if (!literal(at, end, "/models/") || !segment(at, end, data, &name)) return Route::none;
    if (literal(at, end, "/versions/") && !segment(at, end, data, &version)) return Route::none;
    Route route = Route::metadata;
    if (post) {
        if (!literal(at, end, "/infer")) return Route::none;
        route = Route::infer;
    } else if (literal(at, end, "/ready")) {
        route = Route::model_ready;
    }
    if (at != end) return Route::none;
    // "/v2/models/stats" names no model: it is a route about all models.
    const bool is_stats = name.length == 5 && memcmp(data + name.offset, "stats", 5) == 0;
    if (route == Route::metadata && version.length == 0 && is_stats) return Route::none;
    head->name = name;
    head->version = version;
    return route;
}

// Whether a target is a path with names, such as /v1/models/{name}:predict.
static bool is_plain_path(const std::string &path, const unsigned char *at, const unsigned char *end,
                          const unsigned char *data, Head *head) noexcept {
    for (const char *c = path.c_str(); *c; ++c) {
        if (*c == '{') {
            if (!segment(at, end, data, c[1] == 'n' ? &head->name : &head->version)) return false;
            while (*c != '}') ++c;
        } else if (at == end || *at++ != static_cast<unsigned char>(*c)) {
            return false;
        }
    }
    return at == end;
}

// If a path begins with the mount prefix, moves it past the prefix.
static bool below_mount(const unsigned char *&path, const unsigned char *end, const HeadLimits &limits) noexcept {
    const size_t length = limits.mount_length;
    if (static_cast<size_t>(end - path) < length || memcmp(path, limits.mount, length) != 0) return false;
    const unsigned char *const rest = path + length;
    if (rest != end && *rest != '/' && *rest != '?') return false;
    path = rest;
    return true;
}

// Whether a target has the absolute form (RFC 9112 3.2.2): a scheme (RFC 3986 3.1) and an authority, to which `at`
// moves.
static bool is_absolute(const unsigned char *&at, const unsigned char *end) noexcept {
    const unsigned char *const start = at;
    while (at < end && (is(*at, FIELD) || *at == '+' || *at == '.')) ++at;
    return at > start && !is(*start, DIGIT) && *start != '-' && literal(at, end, "://");
}

// Whether a value of Host, without surrounding blanks, is a host with an optional port (RFC 3986 3.2.2), or empty, as
// for a target without authority (RFC 9112 3.2).
static bool is_host(const unsigned char *text, size_t length) noexcept {
    const unsigned char *at = text, *const end = text + length;
    if (at == end) return true;
    const bool literal = *at == '[';  // an IPv6 address
    if (literal) ++at;
    const unsigned char *const name = at;
    while (at < end) {
        if (is(*at, HOST) || (literal && *at == ':')) {
            ++at;
        } else if (*at == '%' && end - at >= 3 && is(at[1], HEX) && is(at[2], HEX)) {
            at += 3;
        } else {
            break;
        }
    }
    if (at == name) return false;
    if (literal && (at == end || *at++ != ']')) return false;
    if (at == end) return true;
    if (*at++ != ':') return false;
    while (at < end && is(*at, DIGIT)) ++at;
    return at == end;
}

}  // namespace ksrv
