// What was answered, for the access log.
//
// The server owns it. Any thread that answers keeps records, and one thread of Python's takes them.

#pragma once

#include <sys/socket.h>
#include <time.h>

#include <cstdint>
#include <string>
#include <vector>

#include "http/connection.hpp"
#include "reactor/log_records.hpp"

namespace ksrv {

// One answered request, for the access log.
struct AccessRecord {
    uint64_t duration_ns;
    uint64_t answered_bytes;
    uint16_t status;
    uint16_t listener;
    std::string head;
    std::string request_id;
    std::string timing;  // the answer's Server-Timing, if it has one
    sockaddr_storage peer;
    socklen_t peer_length;
    timespec at;
};

class AccessLog {
  public:
    // Keeps a record of the answer that a connection has sent, `now`. False: it is lost.
    bool keep(const Connection &connection, uint64_t now) noexcept;

    void take(std::vector<AccessRecord> *out) { records_.take(out); }

  private:
    LogRecords<AccessRecord> records_;
};

}  // namespace ksrv
