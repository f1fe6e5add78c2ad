#include "infer/infer_header_reader.hpp"

#include <charconv>
#include <cmath>
#include <new>

#include "infer/header_scanner.hpp"
#include "infer/tensor_blocks.hpp"

namespace ksrv {

namespace {

class HeaderReader : HeaderScanner {
public:
    using HeaderScanner::HeaderScanner;

    bool run() {
        json::skip_space(c_);
        if (c_.at == c_.end) return fail(HEADER_EMPTY);
        if (*c_.at != '{') {
            // Report another JSON type by its name, and broken JSON by its fault.
            const char *start = c_.at;
            if (!skip()) return false;
            c_.at = start;
            return fail_type("the body", "a JSON object");
        }
        if (!request()) return false;
        out_.json_length = static_cast<std::size_t>(c_.at - begin_);
        json::skip_space(c_);
        if (c_.at != c_.end) {
            fault_.received = static_cast<std::size_t>(c_.end - begin_) - out_.json_length;
            return fail(HEADER_TRAILING);
        }
        return true;
    }

private:
    template <class Tensors>
    bool named_once(const Tensors &others, const Text &name, const char *at) noexcept {
        for (const auto &other : others) {
            if (other.name.same(name)) {
                fault_.name = name;
                return fail(HEADER_DUPLICATE_NAME, at);
            }
        }
        return true;
    }

    // Reads a parameters object. `reserved(key, &handled)` handles names that have a special meaning.
    template <class Reserved>
    bool parameters(std::size_t *first, std::size_t *count, Reserved &&reserved) {
        bool absent = false;
        if (!null(&absent)) return false;
        if (absent) return true;
        if (*c_.at != '{') return fail_type("'parameters'", "an object");
        *first = out_.parameters.size();
        std::size_t entries = 0;
        return object([&](const Text &key) {
            if (++entries > limits_.parameters) return too_many("parameters", limits_.parameters);
            bool handled = false, nothing = false;
            if (!null(&nothing)) return false;
            if (nothing) return true;
            for (std::size_t i = *first; i < out_.parameters.size(); ++i) {
                if (out_.parameters[i].key.same(key)) {
                    fault_.name = key;
                    return fail(HEADER_TWICE);
                }
            }
            if (!reserved(key, &handled)) return false;
            if (handled) return true;
            Parameter parameter;
            parameter.key = key;
            if (!parameter_value(&parameter)) return false;
            out_.parameters.push_back(parameter);
            ++*count;
            return true;
        });
    }

    bool parameter_value(Parameter *parameter) {
        const char *start = c_.at;
        fault_.name = parameter->key;
        if (*start == '"') {
            parameter->kind = PARAM_STRING;
            return string(&parameter->text);
        }
        if (*start == 't' || *start == 'f') {
            int value = 0;
            parameter->kind = PARAM_BOOL;
            if (!boolean_field("", &value)) return false;
            parameter->integer = value;
            return true;
        }
        if (*start == '{' || *start == '[')
            return fail_type("a parameter", "a string, a number, true or false");
        bool integral = false;
        if (!check(json::skip_number(c_, &integral))) return false;
        const char *end = c_.at;
        std::from_chars_result result{end, std::errc()};
        if (!integral) {
            parameter->kind = PARAM_FLOAT;
            return real(start, end, &parameter->real);
        }
        parameter->kind = PARAM_INT;
        result = std::from_chars(start, end, parameter->integer);
        if (result.ec == std::errc()) return true;
        parameter->kind = PARAM_UINT;
        json::Cursor token{start, end};
        bool too_large = false;
        if (json::parse_digits(token, 20, UINT64_MAX, &parameter->unsigned_integer, &too_large))
            return true;
        fault_.field = "a parameter";
        return fail(HEADER_NUMBER, start);
    }

    // 1e-400 becomes 0, as in other readers. 1e400 is refused instead of becoming infinity.
    bool real(const char *start, const char *end, double *value) noexcept {
        const std::from_chars_result result = std::from_chars(start, end, *value);
        if (result.ec == std::errc() && std::isfinite(*value)) return true;
        if (json::is_below_1(start, end)) {
            *value = 0;
            return true;
        }
        fault_.field = "a parameter";
        return fail(HEADER_NUMBER, start);
    }

    bool request_parameter(const Text &key, bool *handled, unsigned *seen) {
        fault_.name = key;
        *handled = true;
        if (key.is("binary_data_output", 18))
            return once(seen, 1, key) && boolean_field("'binary_data_output'", &out_.binary_output);
        if (key.is("timeout", 7))
            return once(seen, 2, key) && unsigned_field("'timeout'", &out_.timeout_us);
        if (key.is("priority", 8))
            return once(seen, 4, key) && unsigned_field("'priority'", &out_.priority);
        if (key.is("triton_enable_empty_final_response", 34))
            return once(seen, 8, key) &&
                   boolean_field("'triton_enable_empty_final_response'", &out_.mark_final);
        if (key.length >= 7 && std::memcmp(key.data, "triton_", 7) == 0) return fail(HEADER_RESERVED);
        *handled = false;  // checked here, but still passed to the handler
        const char *start = c_.at;
        std::uint64_t number = 0;
        int flag = 0;
        bool good = true;
        if (key.is("sequence_id", 11)) {
            if (*start != '"') good = unsigned_field("'sequence_id'", &number);
            if (!good && fault_.error == HEADER_TYPE)
                fault_.wanted = "an unsigned integer or a string";
        } else if (key.is("sequence_start", 14)) {
            good = boolean_field("'sequence_start'", &flag);
        } else if (key.is("sequence_end", 12)) {
            good = boolean_field("'sequence_end'", &flag);
        }
        if (good) c_.at = start;
        return good;
    }

    bool shared_memory(const Text &key, bool *handled, unsigned *seen, SharedMemory *shared) {
        if (key.is("shared_memory_region", 20)) {
            *handled = shared->given = true;
            return once(seen, 1u << 8, key) && string_field("'shared_memory_region'", &shared->region);
        }
        if (key.is("shared_memory_offset", 20)) {
            *handled = true;
            return once(seen, 1u << 9, key) && unsigned_field("'shared_memory_offset'", &shared->offset);
        }
        if (key.is("shared_memory_byte_size", 23)) {
            *handled = true;
            return once(seen, 1u << 10, key) &&
                   unsigned_field("'shared_memory_byte_size'", &shared->byte_size);
        }
        return true;
    }

    bool data_size(InputHeader *input) {
        const char *start = c_.at;
        fault_.field = "'binary_data_size'";
        bool too_large = false;
        if (*start != '"') {
            bool integral = false;
            if (!json::is_digit(*start)) return fail(HEADER_SIZE_INVALID);
            if (!check(json::skip_number(c_, &integral))) return false;
            json::Cursor token{start, c_.at};
            if (!integral || !json::parse_digits(token, 10, UINT64_MAX, &input->size, &too_large))
                return fail(HEADER_SIZE_INVALID, start);
            input->size_form = SIZE_NUMBER;
            return true;
        }
        Text text;
        if (!string(&text)) return false;
        json::Cursor list{text.data, text.data + text.length};
        input->size_form = SIZE_LIST;
        input->sizes_first = out_.sizes.size();
        const auto blanks = [&list]() {
            while (list.at != list.end && *list.at == ' ') ++list.at;
        };
        for (;;) {
            std::uint64_t size = 0;
            blanks();
            if (!json::parse_digits(list, 10, UINT64_MAX, &size, &too_large))
                return fail(HEADER_SIZE_INVALID, start);
            if (input->sizes_count == limits_.size_list) {
                c_.at = start;
                return too_many("sizes in 'binary_data_size'", limits_.size_list);
            }
            out_.sizes.push_back(size);
            ++input->sizes_count;
            input->size += size;  // at most 2^16 sizes below 2^34: no overflow
            blanks();
            if (list.at == list.end) return true;
            if (*list.at++ != ',') return fail(HEADER_SIZE_INVALID, start);
        }
    }

    bool shape(InputHeader *input) {
        if (*c_.at != '[') return fail_type("'shape'", "an array of integers");
        input->shape_first = out_.shapes.size();
        return array([&]() {
            const char *start = c_.at;
            bool integral = false, too_large = false;
            std::uint64_t value = 0;
            fault_.expected = input->rank;
            if (input->rank == limits_.rank) return too_many("dimensions in 'shape'", limits_.rank);
            if (*start != '-' && !json::is_digit(*start)) return fail(HEADER_DIMENSION);
            if (!check(json::skip_number(c_, &integral))) return false;
            if (!integral) return fail(HEADER_DIMENSION, start);
            if (*start == '-') {
                if (!limits_.open_texts || input->rank != 0 || c_.at - start != 2 || start[1] != '1')
                    return fail(HEADER_NEGATIVE, start);
                out_.shapes.push_back(-1);
                ++input->rank;
                return true;
            }
            json::Cursor token{start, c_.at};
            if (!json::parse_digits(token, 10, static_cast<std::uint64_t>(limits_.dimension), &value,
                                    &too_large))
                return fail(HEADER_DIMENSION, start);
            out_.shapes.push_back(static_cast<std::int64_t>(value));
            ++input->rank;
            return true;
        });
    }

    bool input() {
        enum : unsigned { NAME = 1, SHAPE = 2, DATATYPE = 4, PARAMETERS = 8, DATA = 16 };
        if (*c_.at != '{') return fail_type("an entry of 'inputs'", "an object");
        const char *start = c_.at;
        InputHeader input;
        unsigned seen = 0, reserved_seen = 0;
        fault_.place = AT_INPUT;
        fault_.index = out_.inputs.size();
        fault_.owner = {};
        const bool read = object([&](const Text &key) {
            if (key.is("name", 4)) {
                if (!once(&seen, NAME, key) || !string_field("'name'", &input.name)) return false;
                fault_.owner = input.name;
                return true;
            }
            if (key.is("shape", 5)) return once(&seen, SHAPE, key) && shape(&input);
            if (key.is("datatype", 8)) {
                const char *at = c_.at;
                Text text;
                if (!once(&seen, DATATYPE, key) || !string_field("'datatype'", &text)) return false;
                input.datatype = datatype_of(text.data, text.length);
                fault_.name = text;
                return input.datatype != DT_INVALID || fail(HEADER_DATATYPE, at);
            }
            if (key.is("parameters", 10))
                return once(&seen, PARAMETERS, key) &&
                       parameters(&input.parameters_first, &input.parameters_count,
                                  [&](const Text &name, bool *handled) {
                                      if (!name.is("binary_data_size", 16))
                                          return shared_memory(name, handled, &reserved_seen,
                                                               &input.shared);
                                      *handled = true;
                                      return once(&reserved_seen, 1, name) && data_size(&input);
                                  });
            if (key.is("data", 4)) {
                bool absent = false;
                if (!once(&seen, DATA, key) || !null(&absent)) return false;
                if (absent) return true;
                if (*c_.at != '[') return fail_type("'data'", "an array");
                input.has_data = true;
                input.data_begin = static_cast<std::size_t>(c_.at - begin_);
                if (!check(json::skip_array(c_, depth_, limits_.depth))) return false;
                input.data_end = static_cast<std::size_t>(c_.at - begin_);
                return true;
            }
            return skip();
        });
        if (!read) return false;
        if (!(seen & NAME)) return missing("'name'", start);
        if (!(seen & DATATYPE)) return missing("'datatype'", start);
        if (!(seen & SHAPE)) return missing("'shape'", start);
        if (input.shared.given && (input.has_data || input.size_form != SIZE_ABSENT))
            return fail(HEADER_DATA_AND_SHARED, start);
        if (input.has_data && input.size_form != SIZE_ABSENT) return fail(HEADER_DATA_AND_SIZE, start);
        if (!named_once(out_.inputs, input.name, start)) return false;
        const std::size_t item = item_size_of(input.datatype);
        if (input.rank != 0 && out_.shapes[input.shape_first] == -1) {
            fault_.expected = 0;
            if (input.rank != 1 || input.datatype != DT_BYTES || !input.has_data)
                return fail(HEADER_NEGATIVE, start);
            out_.inputs.push_back(input);
            fault_.place = AT_REQUEST;
            return true;
        }
        if (!checked_nbytes(out_.shapes.data() + input.shape_first, input.rank, item ? item : 1, &input.elements,
                            &input.nbytes))
            return fail(HEADER_OVERFLOW, start);
        if (item == 0) input.nbytes = 0;
        out_.inputs.push_back(input);
        fault_.place = AT_REQUEST;
        return true;
    }

    bool output() {
        enum : unsigned { NAME = 1, PARAMETERS = 2 };
        if (*c_.at != '{') return fail_type("an entry of 'outputs'", "an object");
        const char *start = c_.at;
        OutputHeader output;
        unsigned seen = 0, reserved_seen = 0;
        fault_.place = AT_OUTPUT;
        fault_.index = out_.outputs.size();
        fault_.owner = {};
        const bool read = object([&](const Text &key) {
            if (key.is("name", 4)) {
                if (!once(&seen, NAME, key) || !string_field("'name'", &output.name)) return false;
                fault_.owner = output.name;
                return true;
            }
            if (!key.is("parameters", 10)) return skip();
            return once(&seen, PARAMETERS, key) &&
                   parameters(&output.parameters_first, &output.parameters_count,
                              [&](const Text &name, bool *handled) {
                                  if (name.is("binary_data", 11) && *c_.at != '"') {  // "base64" is read in Python
                                      *handled = true;
                                      return once(&reserved_seen, 1, name) &&
                                             boolean_field("'binary_data'", &output.binary);
                                  }
                                  if (name.is("classification", 14)) {
                                      *handled = true;
                                      return once(&reserved_seen, 2, name) &&
                                             unsigned_field("'classification'",
                                                            &output.classification);
                                  }
                                  return shared_memory(name, handled, &reserved_seen, &output.shared);
                              });
        });
        if (!read) return false;
        if (!(seen & NAME)) return missing("'name'", start);
        if (!named_once(out_.outputs, output.name, start)) return false;
        out_.outputs.push_back(output);
        fault_.place = AT_REQUEST;
        return true;
    }

    bool request() {
        enum : unsigned { ID = 1, PARAMETERS = 2, INPUTS = 4, OUTPUTS = 8 };
        const char *start = c_.at;
        unsigned seen = 0, reserved_seen = 0;
        bool absent = false;
        const bool read = object([&](const Text &key) {
            if (key.is("inputs", 6)) {
                if (!once(&seen, INPUTS, key)) return false;
                if (*c_.at != '[') return fail_type("'inputs'", "an array");
                return array([&]() {
                    return out_.inputs.size() < limits_.inputs ? input()
                                                               : too_many("inputs", limits_.inputs);
                });
            }
            if (key.is("outputs", 7)) {
                if (!once(&seen, OUTPUTS, key) || !null(&absent)) return false;
                if (absent) return true;
                if (*c_.at != '[') return fail_type("'outputs'", "an array");
                return array([&]() {
                    return out_.outputs.size() < limits_.inputs
                               ? output()
                               : too_many("outputs", limits_.inputs);
                });
            }
            if (key.is("id", 2)) {
                if (!once(&seen, ID, key) || !null(&absent)) return false;
                return absent || string_field("'id'", &out_.id);
            }
            if (key.is("parameters", 10))
                return once(&seen, PARAMETERS, key) &&
                       parameters(&out_.parameters_first, &out_.parameters_count,
                                  [&](const Text &name, bool *handled) {
                                      return request_parameter(name, handled, &reserved_seen);
                                  });
            return skip();
        });
        return read && ((seen & INPUTS) || missing("'inputs'", start));
    }

};

}  // namespace

HeaderError scan_infer_header(const char *data, std::size_t length, const HeaderLimits &limits,
                              InferHeader *header, HeaderFault *fault) noexcept {
    try {
        return HeaderReader(data, length, limits, header, fault).run() ? HEADER_OK : fault->error;
    } catch (const std::bad_alloc &) {
        fault->error = HEADER_MEMORY;
        return HEADER_MEMORY;
    }
}

}  // namespace ksrv
