#include "server/access_log.hpp"

#include <algorithm>
#include <cstring>

namespace ksrv {

namespace {

// The value of `Server-Timing` in an answer's head, or empty.
std::string server_timing(const Outgoing &out) {
    static constexpr char name[] = "\r\nserver-timing: ";
    const char *head = out.long_head ? out.long_head : out.head;
    const char *found = static_cast<const char *>(memmem(head, out.head_bytes, name, sizeof name - 1));
    if (!found) return {};
    found += sizeof name - 1;
    const size_t left = out.head_bytes - static_cast<size_t>(found - head);
    return {found, static_cast<size_t>(static_cast<const char *>(memmem(found, left, "\r\n", 2)) - found)};
}

}  // namespace

bool keep_record(LogRecords<AccessRecord> *log, const Connection &connection, uint64_t now) noexcept {
    const size_t length = std::min<size_t>(connection.head.length, connection.filled);
    try {
        AccessRecord made;
        made.duration_ns = now > connection.message_ns ? now - connection.message_ns : 0;
        made.answered_bytes = connection.answered_bytes;
        made.status = connection.status;
        made.head.assign(reinterpret_cast<const char *>(connection.buffer), length);
        made.request_id.assign(connection.request_id.text, connection.request_id.length);
        made.timing = server_timing(connection.out);
        made.peer = connection.peer;
        return log->keep(std::move(made), length);
    } catch (const std::bad_alloc &) {
        return false;
    }
}

}  // namespace ksrv
