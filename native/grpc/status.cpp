// Encodes status texts and retry details for trailers, and reads grpc-timeout.

#include "grpc/status.hpp"

#include "protobuf/wire_format.hpp"

namespace ksrv::grpc {

std::string percent_encoded(const char *text, size_t length) {
    static constexpr char HEX[] = "0123456789ABCDEF";
    std::string out;
    out.reserve(length);
    for (size_t i = 0; i < length; ++i) {
        const unsigned char byte = static_cast<unsigned char>(text[i]);
        if (byte >= 0x20 && byte <= 0x7e && byte != '%') {
            out.push_back(static_cast<char>(byte));
        } else {
            out.push_back('%');
            out.push_back(HEX[byte >> 4]);
            out.push_back(HEX[byte & 15]);
        }
    }
    return out;
}

std::string retry_details(int status, const std::string &text, uint64_t seconds) {
    static constexpr char TYPE[] = "type.googleapis.com/google.rpc.RetryInfo";
    protobuf::Writer duration, retry_info, any, out;
    duration.tag(1, protobuf::VARINT);
    duration.varint(seconds);
    retry_info.bytes(1, duration.data(), duration.size());
    any.bytes(1, TYPE, sizeof TYPE - 1);
    any.bytes(2, retry_info.data(), retry_info.size());
    out.tag(1, protobuf::VARINT);
    out.varint(static_cast<uint64_t>(status));
    out.bytes(2, text.data(), text.size());
    out.bytes(3, any.data(), any.size());
    if (out.failed()) return {};
    return std::string(reinterpret_cast<const char *>(out.data()), out.size());
}

std::string binary_value(const std::string &bytes) {
    static constexpr char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    out.reserve((bytes.size() * 4 + 2) / 3);
    unsigned waiting = 0, bits = 0;
    for (const char byte : bytes) {
        waiting = waiting << 8 | static_cast<unsigned char>(byte);
        for (bits += 8; bits >= 6; bits -= 6) out.push_back(ALPHABET[waiting >> (bits - 6) & 63]);
    }
    if (bits) out.push_back(ALPHABET[waiting << (6 - bits) & 63]);
    return out;
}

bool read_timeout(const char *text, size_t length, uint64_t *nanoseconds) noexcept {
    if (length < 2 || length > 9) return false;
    uint64_t value = 0;
    for (size_t i = 0; i + 1 < length; ++i) {
        if (text[i] < '0' || text[i] > '9') return false;
        value = value * 10 + static_cast<uint64_t>(text[i] - '0');
    }
    uint64_t unit = 1;
    switch (text[length - 1]) {
    case 'H': unit = 3600u * 1'000'000'000ull; break;
    case 'M': unit = 60u * 1'000'000'000ull; break;
    case 'S': unit = 1'000'000'000ull; break;
    case 'm': unit = 1'000'000ull; break;
    case 'u': unit = 1000ull; break;
    case 'n': break;
    default: return false;
    }
    *nanoseconds = value > UINT64_MAX / unit ? UINT64_MAX : value * unit;
    return true;
}

}  // namespace ksrv::grpc
