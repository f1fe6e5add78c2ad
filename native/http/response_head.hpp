// Writes the heads of answers over HTTP/1.1, in gunicorn's form. gRPC does not use them.

#pragma once

#include "base/request_id.hpp"
#include "http/outgoing.hpp"

namespace ksrv {

// Writes status line, Server, Date, Connection, the request's id and the application's fields, in gunicorn's order.
// `fields` must end with CRLF or be empty. A prepared body is copied after the head.
bool put_head(Outgoing *out, const char *status, size_t status_length, const char *fields,
              size_t fields_length, bool close, bool http_1_0, const RequestId &id, const char *body = nullptr,
              size_t body_length = 0) noexcept;

}  // namespace ksrv
