// The head of every answer over HTTP/1.1, as gunicorn would write it; gRPC has none.

#pragma once

#include "base/request_id.hpp"
#include "http/outgoing.hpp"

namespace ksrv {

// Writes status line, Server, Date, Connection, the request's id and the application's fields: what gunicorn
// writes, in its order. `fields` ends with CRLF or is empty. A ready-made body is copied behind the head.
bool put_head(Outgoing *out, const char *status, size_t status_length, const char *fields,
              size_t fields_length, const char *server, size_t server_length, bool close,
              bool http_1_0, const RequestId &id, const char *body = nullptr, size_t body_length = 0) noexcept;

}  // namespace ksrv
