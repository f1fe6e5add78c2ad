// Loads libnghttp2 and finds its functions.

#include "http2/library.hpp"

#include <dlfcn.h>

namespace ksrv::http2 {

Library nghttp2;

namespace {

constexpr int OLDEST = 0x012b00;  // 1.43, the version in Debian 11 and RHEL 9

// nghttp2_info
struct Info {
    int age;
    int version_num;
    const char *version_str;
    const char *proto_str;
};

template <typename Function> bool find(void *from, const char *name, Function *out) noexcept {
    *out = reinterpret_cast<Function>(dlsym(from, name));
    return *out != nullptr;
}

bool load() noexcept {
    void *from = dlopen("libnghttp2.so.14", RTLD_NOW | RTLD_LOCAL);
    if (!from) return false;
    Info *(*version)(int) = nullptr;
    bool found = find(from, "nghttp2_version", &version);
#define KSRV_FIND(result, name, arguments) found = find(from, "nghttp2_" #name, &nghttp2.name) && found;
    KSRV_NGHTTP2_FUNCTIONS(KSRV_FIND)
#undef KSRV_FIND
    const Info *info = found ? version(0) : nullptr;
    if (!info || info->version_num < OLDEST) return false;
    nghttp2.version = info->version_num;
    nghttp2.version_text = info->version_str;
    // Older releases lack these functions, so the results are ignored: a missing function stays null.
    find(from, "nghttp2_option_set_stream_reset_rate_limit", &nghttp2.option_set_stream_reset_rate_limit);
    find(from, "nghttp2_option_set_glitch_rate_limit", &nghttp2.option_set_glitch_rate_limit);
    return true;
}

}  // namespace

const Library *library() noexcept {
    static const bool loaded = load();
    return loaded ? &nghttp2 : nullptr;
}

}  // namespace ksrv::http2
