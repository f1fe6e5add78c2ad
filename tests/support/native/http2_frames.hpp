// Frames of HTTP/2 and fields of HPACK as the programs' clients write them.

#pragma once

#include <cstdint>
#include <string>

inline std::string frame(int type, int flags, uint32_t stream, const std::string &payload) {
    std::string made;
    for (int shift : {16, 8, 0}) made.push_back(static_cast<char>(payload.size() >> shift));
    made.push_back(static_cast<char>(type));
    made.push_back(static_cast<char>(flags));
    for (int shift : {24, 16, 8, 0}) made.push_back(static_cast<char>(stream >> shift));
    return made + payload;
}

// Literal, not indexed, not compressed.
inline std::string field(const std::string &name, const std::string &value) {
    std::string made(1, '\0');
    made.push_back(static_cast<char>(name.size()));
    made += name;
    made.push_back(static_cast<char>(value.size()));
    return made + value;
}

// The fields of the head of a gRPC call.
inline std::string call_fields(const std::string &path) {
    return field(":method", "POST") + field(":scheme", "http") + field(":path", path) + field(":authority", "x") +
           field("content-type", "application/grpc");
}

// The next frame of what a server has sent, which is taken from its bytes.
struct ReceivedFrame {
    int type = -1, flags = 0;
    uint32_t stream = 0;
    std::string payload;

    static bool take(std::string *bytes, ReceivedFrame *found) {
        const auto byte = [bytes](size_t at) { return static_cast<uint32_t>(static_cast<unsigned char>((*bytes)[at])); };
        if (bytes->size() < 9) return false;
        const size_t length = byte(0) << 16 | byte(1) << 8 | byte(2);
        if (bytes->size() < 9 + length) return false;
        found->type = static_cast<int>(byte(3));
        found->flags = static_cast<int>(byte(4));
        found->stream = (byte(5) & 0x7f) << 24 | byte(6) << 16 | byte(7) << 8 | byte(8);
        found->payload = bytes->substr(9, length);
        bytes->erase(0, 9 + length);
        return true;
    }

    // Whether it is the last frame of its stream: RST_STREAM, or the last DATA or HEADERS.
    bool ends_stream() const { return type == 3 || (type <= 1 && flags & 1); }
};
