#include "tls/openssl.hpp"

#include <dlfcn.h>

#include <string>

namespace ksrv {

OpenSsl openssl;

namespace {

constexpr const char *LIBRARY = "libssl.so.3";

// Finds all functions, or lists the missing functions in `missing`.
bool find_all(void *library, std::string *missing) {
    bool found = true;
#define KSRV_FIND(result, name, arguments)                                           \
    openssl.name = reinterpret_cast<decltype(openssl.name)>(dlsym(library, #name));  \
    if (!openssl.name) {                                                             \
        found = false;                                                               \
        *missing += (missing->empty() ? "" : ", ") + std::string(#name);             \
    }
    KSRV_OPENSSL_FUNCTIONS(KSRV_FIND)
#undef KSRV_FIND
    return found;
}

// Loads the library once. Returns a string that is never freed, and is empty on success.
std::string *load() {
    auto *why = new std::string;
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);  // loads libcrypto, too
    if (!library) {
        *why = std::string(LIBRARY) + " cannot be loaded";
        return why;
    }
    std::string missing;
    if (!find_all(library, &missing)) *why = std::string(LIBRARY) + " does not have " + missing;
    return why;
}

}  // namespace

const char *load_openssl() noexcept {
    static const std::string *const why = load();
    return why->empty() ? nullptr : why->c_str();
}

}  // namespace ksrv
