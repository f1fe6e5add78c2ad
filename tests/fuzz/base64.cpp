// libFuzzer target for native/json/base64.hpp: what is accepted is written again and must be the same text;
// what is refused a naive reader refuses too, or it has another spelling.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "json/base64.hpp"

namespace {

constexpr char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string written(const unsigned char *data, std::size_t size) {
    std::string text;
    for (std::size_t at = 0; at < size; at += 3) {
        unsigned bits = 0;
        for (std::size_t i = 0; i < 3; ++i) bits = bits << 8 | (at + i < size ? data[at + i] : 0u);
        for (std::size_t i = 0; i < 4; ++i)
            text += at + i > size ? '=' : ALPHABET[bits >> (18 - 6 * i) & 63];
    }
    return text;
}

// Whether a text is all of the alphabet, padded at its end alone.
bool spelled(const std::string &text) {
    if (text.size() % 4 != 0) return false;
    const std::size_t end = text.find('=');
    const std::size_t letters = end == std::string::npos ? text.size() : end;
    for (std::size_t i = 0; i < letters; ++i)
        if (text[i] == '\0' || !std::strchr(ALPHABET, text[i])) return false;
    return text.size() - letters <= 2 && text.find_first_not_of('=', letters) == std::string::npos;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    // Copies of the exact sizes, so that the sanitizer sees one byte too many.
    std::unique_ptr<unsigned char[]> text(new unsigned char[size]);
    if (size) std::memcpy(text.get(), data, size);
    const std::string given(text.get(), text.get() + size);
    std::size_t decoded = 0;
    if (!ksrv::base64_decoded_size(text.get(), size, &decoded)) {
        if (size % 4 == 0) std::abort();
        return 0;
    }
    std::unique_ptr<unsigned char[]> out(new unsigned char[decoded]);
    const std::size_t end = ksrv::decode_base64(text.get(), size, out.get());
    if (end == size) {
        if (written(out.get(), decoded) != given) std::abort();
    } else if (end % 4 != 0 || end > size || !spelled(given.substr(0, end))) {
        std::abort();
    } else if (spelled(given) && end + 4 != size) {
        std::abort();  // only the last group may have bits beyond its last byte
    }
    // And the way back, for bytes of any kind.
    const std::string own = written(text.get(), size);
    const auto *letters = reinterpret_cast<const unsigned char *>(own.data());
    if (!ksrv::base64_decoded_size(letters, own.size(), &decoded) || decoded != size) std::abort();
    std::unique_ptr<unsigned char[]> again(new unsigned char[size]);
    if (ksrv::decode_base64(letters, own.size(), again.get()) != own.size()) std::abort();
    if (size && std::memcmp(again.get(), data, size) != 0) std::abort();
    return 0;
}
