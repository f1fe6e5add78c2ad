// A model of rows, the only one of a server, for programs that play its instances.

#pragma once

#include <memory>
#include <utility>

#include "server/server.hpp"

namespace ksrv {

// Routes requests to the model m, with rows x of so many numbers and the answer y, to a queue. The signature is held for
// the caller, and by the route.
inline ModelSignature *route_rows(HttpServer *server, Queue *queue, std::size_t columns, std::uint64_t max_rows,
                                  std::int64_t timeout_ns) {
    ModelSignature *signature = new ModelSignature;
    signature->queue = queue;
    signature->taken = [](Request *) -> void * { return nullptr; };
    signature->model = "m";
    signature->max_rows = max_rows;
    signature->timeout_ns = timeout_ns;
    signature->json_limit = 4096;
    signature->inputs.push_back({"x", DT_FP32, {static_cast<std::int64_t>(columns)}, 4 * columns, {}});
    signature->outputs.push_back("y");
    signature->late_waiting = signature->late_running = "%lld ms";
    ModelRoute route;
    route.name = "m";
    route.queue = queue;
    retain(queue);
    route.full = {503, "503 Service Unavailable", "content-length: 4\r\n", "full"};
    route.signature = signature;
    signature->retain();
    auto table = std::make_shared<RouteTable>(0);
    table->add(std::move(route));
    table->sort();
    server->routes.tables.replace(table);
    return signature;
}

}  // namespace ksrv
