// Records of answers for the access log. Any I/O or Python thread that sends an answer adds a record. One Python thread
// takes the records and writes the log.

#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "http/connection.hpp"
#include "reactor/log_records.hpp"

namespace ksrv {

struct AccessRecord {
    uint64_t duration_ns;
    uint64_t answered_bytes;
    uint16_t status;
    std::string head;        // of the request, as received
    std::string request_id;
    std::string timing;  // the answer's Server-Timing field, or empty
    sockaddr_storage peer;
};

// Adds a record of the answer that a connection sent at `now`. False if the record is lost, because too many records
// wait or memory is short.
bool keep_record(LogRecords<AccessRecord> *log, const Connection &connection, uint64_t now) noexcept;

}  // namespace ksrv
