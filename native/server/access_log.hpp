// Records of answers for the access log.
//
// The server owns it. Any thread that answers adds records, and one Python thread takes them.

#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "http/connection.hpp"
#include "reactor/log_records.hpp"

namespace ksrv {

// An answered request, for the access log.
struct AccessRecord {
    uint64_t duration_ns;
    uint64_t answered_bytes;
    uint16_t status;
    std::string head;
    std::string request_id;
    std::string timing;  // of the answer, or empty
    sockaddr_storage peer;
};

// Adds a record of the answer that a connection sent at `now`. False if it is lost.
bool keep_record(LogRecords<AccessRecord> *log, const Connection &connection, uint64_t now) noexcept;

}  // namespace ksrv
