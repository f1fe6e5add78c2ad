// The inputs of the models in the harnesses of requests of the fast path.

#pragma once

#include <utility>
#include <vector>

#include "infer/model_signature.hpp"

// An input whose rows have a shape.
inline ksrv::InputSignature input(const char *name, ksrv::Datatype datatype, std::vector<std::int64_t> tail) {
    ksrv::InputSignature made;
    made.name = name;
    made.datatype = datatype;
    made.row_bytes = ksrv::item_size_of(datatype);
    for (std::int64_t size : tail) made.row_bytes *= static_cast<std::uint64_t>(size);
    made.tail = std::move(tail);
    return made;
}
