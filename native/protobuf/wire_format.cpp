#include "protobuf/wire_format.hpp"

namespace ksrv::protobuf {

bool Cursor::skip(std::uint64_t field, unsigned type) noexcept {
    std::uint64_t open[MAX_GROUPS];
    std::size_t depth = 0;
    for (;;) {
        std::uint64_t value;
        unsigned length;
        Span ignored;
        bool odd;  // ignored: a message with an unknown field is odd already
        switch (type) {
        case VARINT:
            if (!varint(&value, &length)) return false;
            break;
        case FIXED64:
            if (!advance(8)) return false;
            break;
        case BYTES:
            if (!span(&ignored, &odd)) return false;
            break;
        case FIXED32:
            if (!advance(4)) return false;
            break;
        case GROUP:
            if (depth == MAX_GROUPS) return false;
            open[depth++] = field;
            break;
        case END_GROUP:
            if (depth == 0 || open[--depth] != field) return false;
            break;
        default:
            return false;
        }
        if (depth == 0) return true;
        if (!tag(&field, &type, &odd)) return false;
    }
}

bool count_varints(const unsigned char *p, std::size_t n, std::uint64_t *count, bool *odd) noexcept {
    if (n && (p[n - 1] & 0x80)) return false;
    std::uint64_t ends = 0;
    for (std::size_t i = 0; i < n; ++i) ends += !(p[i] & 0x80);
    *count = ends;
    if (ends == n) return true;
    unsigned run = 0;
    for (std::size_t i = 0; i < n; ++i) {
        if (!(p[i] & 0x80)) {
            if (run == 9 && p[i] > 1) *odd = true;  // bits above the 64th
            run = 0;
        } else if (++run == 10) {
            return false;
        }
    }
    return true;
}

}  // namespace ksrv::protobuf
