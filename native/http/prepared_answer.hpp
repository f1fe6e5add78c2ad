// Answers that the server sends without Python, because they are rendered in advance (`prepared_answers` in
// ksrv/server/rest/fast_path.py).

#pragma once

#include <cstdint>
#include <string>

namespace ksrv {

// `fields` are the application's header fields. The server adds all others.
struct PreparedAnswer {
    uint16_t status = 0;
    std::string status_line;  // "503 Service Unavailable"
    std::string fields;       // "content-type: ...\r\ncontent-length: 20\r\n"
    std::string body;
};

enum PreparedAnswerIndex : int {
    ANSWER_LIVE,
    ANSWER_READY,
    ANSWER_TOO_SLOW,      // the head or the body did not arrive in time
    ANSWER_BYTES_IN_FLIGHT,  // the limit on bytes in flight is reached
    ANSWER_FAILED,        // a fault of the server
    ANSWER_SERVER,        // name, version and extensions
    ANSWER_NOT_TLS,       // plain HTTP on a TLS listener
    PREPARED_ANSWERS,
};

}  // namespace ksrv
