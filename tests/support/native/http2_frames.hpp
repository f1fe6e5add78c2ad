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
