#include "server/fast_response.hpp"

#include "base/text_writer.hpp"
#include "v2/binary_response.hpp"

namespace ksrv {

namespace {

constexpr std::size_t FAST_RESPONSE_FIELDS_BYTES = 1024;

}  // namespace

void send_fast_response(FastRequest *request, const ReplyPart *parts, int part_count, std::int64_t row,
                 bool alone, const ReplyStage *stages, int stage_count) noexcept {
    const ModelSignature &signature = *request->signature;
    const FastRequestLayout &layout = request->layout;
    HttpServer *server = request->server;
    Connection *connection = server->take_turn(request->turn);
    if (!connection) return;
    char room[FAST_RESPONSE_BYTES], fields_room[FAST_RESPONSE_FIELDS_BYTES];
    TextWriter body(room, sizeof room), fields(fields_room, sizeof fields_room);
    const int count = layout.wanted_count ? layout.wanted_count : part_count;
    const std::int64_t rows = static_cast<std::int64_t>(request->rows);
    bool good = begin_reply(body, signature.model.data(), signature.model.size(), signature.version.data(),
                            signature.version.size(),
                            reinterpret_cast<const char *>(request->body()) + layout.id_offset,
                            layout.id_length);
    const auto part_of = [&](int i) -> const ReplyPart & {
        return parts[layout.wanted_count ? layout.wanted[i] : i];
    };
    for (int i = 0; i < count && good; ++i) {
        const ReplyPart &part = part_of(i);
        good = put_output(body, i == 0, part.name, part.name_length, part.datatype, part.datatype_length,
                          part.shape, part.rank, alone ? -1 : rows, rows * part.row_bytes);
    }
    end_reply(body);
    begin_fields(fields, body.length());
    fields.put("server-timing: queue;dur=");
    fields.milliseconds(static_cast<std::uint64_t>(request->started_ns - request->enqueued_ns));
    for (int i = 0; i < stage_count; ++i)
        put_stage(fields, false, stages[i].name, stages[i].length, stages[i].nanoseconds);
    for (int i = 0; i < count; ++i) {
        const ReplyPart &part = part_of(i);
        body.put(reinterpret_cast<const char *>(part.data) + row * part.row_bytes,
                 static_cast<std::size_t>(rows * part.row_bytes));
    }
    end_fields(fields, true, body.length());
    static constexpr char line[] = "200 OK";
    if (!good || body.full() || fields.full()) {
        server->answer_prepared(connection, ANSWER_FAILED);
    } else if (server->put_answer(connection, 200, line, sizeof line - 1, fields.text(), fields.length(),
                                body.text(), body.length())) {
        server->answer(connection, nullptr);
    } else {
        server->drop(connection);
    }
}

}  // namespace ksrv
