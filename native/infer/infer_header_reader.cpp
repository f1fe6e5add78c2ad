#include "infer/infer_header_reader.hpp"

#include <charconv>
#include <cmath>
#include <new>

#include "json/scanner.hpp"

namespace ksrv {

namespace {

// A recursive-descent reader: a method for each object of the protocol, and for each kind of value. The cursor is at
// the value's first byte before a call, and after its last byte afterwards. A method that returns false has set the
// fault.
class HeaderReader {
public:
    HeaderReader(const char *data, std::size_t length, const HeaderLimits &limits, InferHeader *out,
                 HeaderFault *fault) noexcept
        : begin_(data), cursor_{data, data + length}, limits_(limits), out_(*out), fault_(*fault) {}

    bool run() {
        json::skip_space(cursor_);
        if (cursor_.at == cursor_.end) return fail(HEADER_EMPTY);
        if (*cursor_.at != '{') {
            // Report another JSON type by its name, and broken JSON by its fault.
            const char *start = cursor_.at;
            if (!skip()) return false;
            cursor_.at = start;
            return fail_type("the body", "a JSON object");
        }
        if (!request()) return false;
        out_.json_length = static_cast<std::size_t>(cursor_.at - begin_);
        json::skip_space(cursor_);
        if (cursor_.at != cursor_.end) {
            fault_.received = static_cast<std::size_t>(cursor_.end - begin_) - out_.json_length;
            return fail(HEADER_TRAILING);
        }
        return true;
    }

private:
    bool fail(HeaderError error, const char *at = nullptr) noexcept {
        fault_.error = error;
        fault_.offset = static_cast<std::size_t>((at ? at : cursor_.at) - begin_);
        return false;
    }

    bool fail_type(const char *field, const char *wanted, const char *at = nullptr) noexcept {
        fault_.field = field;
        fault_.wanted = wanted;
        return fail(HEADER_TYPE, at);
    }

    bool fail(json::Fault fault) noexcept {
        switch (fault) {
            case json::END: return fail(HEADER_END);
            case json::DEPTH: return fail(HEADER_DEPTH);
            case json::CONTROL: return fail(HEADER_CONTROL);
            case json::ESCAPE: return fail(HEADER_ESCAPE);
            case json::UTF8: return fail(HEADER_UTF8);
            default: return fail(HEADER_SYNTAX);
        }
    }

    bool check(json::Fault fault) noexcept { return fault == json::OK || fail(fault); }
    bool skip() noexcept { return check(json::skip_value(cursor_, depth_, limits_.depth)); }
    bool more() noexcept { return cursor_.at != cursor_.end || fail(HEADER_END); }

    // Consumes null, which means the same as a missing value. Sets a fault for another word.
    bool null(bool *absent) noexcept {
        *absent = *cursor_.at == 'n';
        return !*absent || check(json::skip_word(cursor_, "null", 4));
    }

    bool string(std::string_view *text) {
        const char *start = cursor_.at + 1;
        bool escaped = false;
        if (!check(json::skip_string(cursor_, &escaped))) return false;
        if (!escaped) {
            *text = {start, static_cast<std::size_t>(cursor_.at - 1 - start)};
            return true;
        }
        // Decoded strings are never longer than their encoded form, so that a block of the header's size is enough
        // for all.
        if (!out_.decoded) out_.decoded.reset(new char[static_cast<std::size_t>(cursor_.end - begin_)]);
        char *target = out_.decoded.get() + out_.decoded_length;
        *text = {target, json::decode_string(start, cursor_.at - 1, target)};
        out_.decoded_length += text->size();
        return true;
    }

    bool string_field(const char *field, std::string_view *text) {
        return *cursor_.at == '"' ? string(text) : fail_type(field, "a string");
    }

    // Reads the members of an object or an array up to `close`.
    template <class Member>
    bool members(char close, Member &&member) {
        if (++depth_ > limits_.depth) return fail(HEADER_DEPTH);
        ++cursor_.at;
        json::skip_space(cursor_);
        if (!more()) return false;
        if (*cursor_.at != close) {
            for (;;) {
                if (!more() || !member()) return false;
                json::skip_space(cursor_);
                if (!more()) return false;
                if (*cursor_.at == close) break;
                if (*cursor_.at != ',') return fail(HEADER_SYNTAX);
                ++cursor_.at;
                json::skip_space(cursor_);
            }
        }
        ++cursor_.at;
        --depth_;
        return true;
    }

    template <class Item>
    bool array(Item &&item) {
        return members(']', item);
    }

    template <class Field>
    bool object(Field &&field) {
        return members('}', [&]() {
            if (*cursor_.at != '"') return fail(HEADER_SYNTAX);
            std::string_view key;
            if (!string(&key)) return false;
            json::skip_space(cursor_);
            if (!more()) return false;
            if (*cursor_.at != ':') return fail(HEADER_SYNTAX);
            ++cursor_.at;
            json::skip_space(cursor_);
            return more() && field(key);
        });
    }

    // Sets the key's bit in `*seen`. Fails if the bit was set already, because the key occurs twice.
    bool once(unsigned *seen, unsigned bit, std::string_view key) noexcept {
        if (*seen & bit) {
            fault_.name = key;
            return fail(HEADER_TWICE);
        }
        *seen |= bit;
        return true;
    }

    bool too_many(const char *field, std::uint64_t limit) noexcept {
        fault_.field = field;
        fault_.expected = limit;
        return fail(HEADER_TOO_MANY);
    }

    bool missing(const char *field, const char *at) noexcept {
        fault_.field = field;
        return fail(HEADER_MISSING, at);
    }

    // Fails if another input or output has the same name.
    template <class Tensors>
    bool named_once(const Tensors &others, std::string_view name, const char *at) noexcept {
        for (const auto &other : others) {
            if (other.name == name) {
                fault_.name = name;
                return fail(HEADER_DUPLICATE_NAME, at);
            }
        }
        return true;
    }

    // Reads a parameters object: of `input`, or of the request or an output.
    bool parameters(Parameters *found, InputHeader *input = nullptr) {
        bool absent = false;
        if (!null(&absent)) return false;
        if (absent) return true;
        if (*cursor_.at != '{') return fail_type("'parameters'", "an object");
        found->first = out_.parameters.size();
        std::size_t entries = 0;
        return object([&](std::string_view key) {
            if (++entries > limits_.parameters) return too_many("parameters", limits_.parameters);
            bool nothing = false;
            if (!null(&nothing)) return false;
            if (nothing) return true;
            const bool is_size = input && is(key, "binary_data_size");
            bool repeated = is_size && input->size_form != SIZE_ABSENT;
            for (std::size_t i = found->first; i < out_.parameters.size(); ++i)
                repeated |= out_.parameters[i].key == key;
            if (repeated) {
                fault_.name = key;
                return fail(HEADER_TWICE);
            }
            if (is_size) return data_size(input);
            if (input && (is(key, "shared_memory_region") || is(key, "shared_memory_offset") ||
                          is(key, "shared_memory_byte_size")))
                input->shared = true;
            Parameter parameter;
            parameter.key = key;
            if (!parameter_value(&parameter)) return false;
            out_.parameters.push_back(parameter);
            ++found->count;
            return true;
        });
    }

    bool parameter_value(Parameter *parameter) {
        const char *start = cursor_.at;
        fault_.name = parameter->key;
        if (*start == '"') {
            parameter->kind = PARAM_STRING;
            return string(&parameter->text);
        }
        if (*start == 't' || *start == 'f') {
            parameter->kind = PARAM_BOOL;
            parameter->integer = *start == 't';
            return check(*start == 't' ? json::skip_word(cursor_, "true", 4) : json::skip_word(cursor_, "false", 5));
        }
        if (*start == '{' || *start == '[')
            return fail_type("a parameter", "a string, a number, true or false");
        bool integral = false;
        if (!check(json::skip_number(cursor_, &integral))) return false;
        const char *end = cursor_.at;
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
        if (json::underflows(start, end)) {
            *value = 0;
            return true;
        }
        fault_.field = "a parameter";
        return fail(HEADER_NUMBER, start);
    }

    // Reads `binary_data_size`: a number, or, for BYTES, a string of comma-separated sizes of the elements.
    bool data_size(InputHeader *input) {
        const char *start = cursor_.at;
        fault_.field = "'binary_data_size'";
        bool too_large = false;
        if (*start != '"') {
            bool integral = false;
            if (!json::is_digit(*start)) return fail(HEADER_SIZE_INVALID);
            if (!check(json::skip_number(cursor_, &integral))) return false;
            json::Cursor token{start, cursor_.at};
            if (!integral || !json::parse_digits(token, 10, UINT64_MAX, &input->size, &too_large))
                return fail(HEADER_SIZE_INVALID, start);
            input->size_form = SIZE_NUMBER;
            return true;
        }
        std::string_view text;
        if (!string(&text)) return false;
        json::Cursor list{text.data(), text.data() + text.size()};
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
                cursor_.at = start;
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

    // Reads a shape. With `open_texts`, the only negative dimension is the first, as -1; `input` checks the rest.
    bool shape(InputHeader *input) {
        if (*cursor_.at != '[') return fail_type("'shape'", "an array of integers");
        input->shape_first = out_.shapes.size();
        return array([&]() {
            const char *start = cursor_.at;
            bool integral = false, too_large = false;
            std::uint64_t value = 0;
            fault_.expected = input->rank;
            if (input->rank == limits_.rank) return too_many("dimensions in 'shape'", limits_.rank);
            if (*start != '-' && !json::is_digit(*start)) return fail(HEADER_DIMENSION);
            if (!check(json::skip_number(cursor_, &integral))) return false;
            if (!integral) return fail(HEADER_DIMENSION, start);
            if (*start == '-') {
                if (!limits_.open_texts || input->rank != 0 || cursor_.at - start != 2 || start[1] != '1')
                    return fail(HEADER_NEGATIVE, start);
                out_.shapes.push_back(-1);
                ++input->rank;
                return true;
            }
            json::Cursor token{start, cursor_.at};
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
        if (*cursor_.at != '{') return fail_type("an entry of 'inputs'", "an object");
        const char *start = cursor_.at;
        InputHeader input;
        unsigned seen = 0;
        fault_.place = AT_INPUT;
        fault_.index = out_.inputs.size();
        fault_.owner = {};
        const bool read = object([&](std::string_view key) {
            if (is(key, "name")) {
                if (!once(&seen, NAME, key) || !string_field("'name'", &input.name)) return false;
                fault_.owner = input.name;
                return true;
            }
            if (is(key, "shape")) return once(&seen, SHAPE, key) && shape(&input);
            if (is(key, "datatype")) {
                const char *at = cursor_.at;
                std::string_view text;
                if (!once(&seen, DATATYPE, key) || !string_field("'datatype'", &text)) return false;
                input.datatype = datatype_of(text.data(), text.size());
                fault_.name = text;
                return input.datatype != DT_INVALID || fail(HEADER_DATATYPE, at);
            }
            if (is(key, "parameters"))
                return once(&seen, PARAMETERS, key) && parameters(&input.parameters, &input);
            if (is(key, "data")) {
                bool absent = false;
                if (!once(&seen, DATA, key) || !null(&absent)) return false;
                if (absent) return true;
                const bool text = limits_.open_texts && *cursor_.at == '"';
                if (*cursor_.at != '[' && !text) return fail_type("'data'", "an array");
                input.has_data = true;
                input.data_begin = static_cast<std::size_t>(cursor_.at - begin_);
                if (!(text ? skip() : check(json::skip_array(cursor_, depth_, limits_.depth)))) return false;
                input.data_end = static_cast<std::size_t>(cursor_.at - begin_);
                return true;
            }
            return skip();
        });
        if (!read) return false;
        if (!(seen & NAME)) return missing("'name'", start);
        if (!(seen & DATATYPE)) return missing("'datatype'", start);
        if (!(seen & SHAPE)) return missing("'shape'", start);
        return add_input(input, start);
    }

    // Checks the members of an input against each other, computes its size, and adds it.
    bool add_input(InputHeader &input, const char *start) {
        if (input.shared && (input.has_data || input.size_form != SIZE_ABSENT))
            return fail(HEADER_DATA_AND_SHARED, start);
        if (input.has_data && input.size_form != SIZE_ABSENT) return fail(HEADER_DATA_AND_SIZE, start);
        if (!named_once(out_.inputs, input.name, start)) return false;
        const std::size_t item = item_size_of(input.datatype);
        if (input.rank != 0 && out_.shapes[input.shape_first] == -1) {  // open: the number of texts is counted later
            fault_.expected = 0;
            if (input.rank != 1 || input.datatype != DT_BYTES || !input.has_data)
                return fail(HEADER_NEGATIVE, start);
        } else if (!checked_nbytes(out_.shapes.data() + input.shape_first, input.rank, item ? item : 1,
                                   &input.elements, &input.nbytes)) {
            return fail(HEADER_OVERFLOW, start);
        }
        if (item == 0) input.nbytes = 0;
        out_.inputs.push_back(input);
        fault_.place = AT_REQUEST;
        return true;
    }

    bool output() {
        enum : unsigned { NAME = 1, PARAMETERS = 2 };
        if (*cursor_.at != '{') return fail_type("an entry of 'outputs'", "an object");
        const char *start = cursor_.at;
        OutputHeader output;
        unsigned seen = 0;
        fault_.place = AT_OUTPUT;
        fault_.index = out_.outputs.size();
        fault_.owner = {};
        const bool read = object([&](std::string_view key) {
            if (is(key, "name")) {
                if (!once(&seen, NAME, key) || !string_field("'name'", &output.name)) return false;
                fault_.owner = output.name;
                return true;
            }
            if (!is(key, "parameters")) return skip();
            return once(&seen, PARAMETERS, key) && parameters(&output.parameters);
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
        const char *start = cursor_.at;
        unsigned seen = 0;
        bool absent = false;
        const bool read = object([&](std::string_view key) {
            if (is(key, "inputs")) {
                if (!once(&seen, INPUTS, key)) return false;
                if (*cursor_.at != '[') return fail_type("'inputs'", "an array");
                return array([&]() {
                    return out_.inputs.size() < limits_.inputs ? input()
                                                               : too_many("inputs", limits_.inputs);
                });
            }
            if (is(key, "outputs")) {
                if (!once(&seen, OUTPUTS, key) || !null(&absent)) return false;
                if (absent) return true;
                if (*cursor_.at != '[') return fail_type("'outputs'", "an array");
                return array([&]() {
                    return out_.outputs.size() < limits_.inputs
                               ? output()
                               : too_many("outputs", limits_.inputs);
                });
            }
            if (is(key, "id")) {
                if (!once(&seen, ID, key) || !null(&absent)) return false;
                return absent || string_field("'id'", &out_.id);
            }
            if (is(key, "parameters")) return once(&seen, PARAMETERS, key) && parameters(&out_.request_parameters);
            return skip();
        });
        return read && ((seen & INPUTS) || missing("'inputs'", start));
    }

    const char *begin_;    // of the header; faults are offsets from here
    json::Cursor cursor_;  // the bytes that were not read yet
    const HeaderLimits &limits_;
    InferHeader &out_;
    HeaderFault &fault_;
    unsigned depth_ = 0;  // open objects and arrays
};

// Finds the bytes in the body of every input without JSON data, in the order of the inputs. The size follows from the
// shape, or the client gives it. If both exist they must agree, and the sizes together must use up the body exactly.
HeaderError split_blocks(InferHeader *header, std::size_t json_length, std::size_t body_length,
                         HeaderFault *fault) noexcept {
    std::size_t offset = json_length;
    const auto fail = [&](HeaderError error, std::uint64_t expected, std::uint64_t received) {
        fault->error = error;
        fault->offset = offset;
        fault->expected = expected;
        fault->received = received;
        return error;
    };
    for (std::size_t i = 0; i < header->inputs.size(); ++i) {
        InputHeader &input = header->inputs[i];
        if (input.has_data || input.shared) continue;
        fault->place = AT_INPUT;
        fault->index = i;
        fault->owner = input.name;
        const std::size_t left = body_length - offset;
        const bool bytes = input.datatype == DT_BYTES;
        std::uint64_t length = input.size;
        if (input.size_form == SIZE_ABSENT) {
            if (!bytes) {
                length = input.nbytes;
            } else if (input.elements == 0) {
                length = 0;
            } else if (header->inputs.size() == 1 && input.elements == 1) {
                length = left;
            } else {
                return fail(left ? HEADER_BYTES_UNSIZED : HEADER_NO_DATA, 0, left);
            }
            if (left == 0 && input.elements != 0) return fail(HEADER_NO_DATA, length, 0);
        } else if (!bytes && length != input.nbytes) {
            return fail(HEADER_SIZE_MISMATCH, input.nbytes, length);
        } else if (bytes && input.size_form == SIZE_LIST && input.sizes_count != input.elements) {
            return fail(HEADER_SIZE_LIST_COUNT, input.elements, input.sizes_count);
        } else if (bytes && input.size_form == SIZE_NUMBER && length == 0 && input.elements != 0) {
            return fail(HEADER_SIZE_ZERO, input.elements, 0);
        }
        if (length > left) return fail(HEADER_SHORT, length, left);
        input.offset = offset;
        input.length = static_cast<std::size_t>(length);
        offset += input.length;
    }
    fault->place = AT_REQUEST;
    if (offset != body_length)
        return fail(HEADER_SURPLUS, offset - json_length, body_length - json_length);
    return HEADER_OK;
}

}  // namespace

HeaderError read_infer_header(const char *body, std::size_t json_length, std::size_t body_length,
                              const HeaderLimits &limits, InferHeader *header, HeaderFault *fault) noexcept {
    try {
        if (!HeaderReader(body, json_length, limits, header, fault).run()) return fault->error;
        return split_blocks(header, json_length, body_length, fault);
    } catch (const std::bad_alloc &) {
        fault->error = HEADER_MEMORY;
        return HEADER_MEMORY;
    }
}

}  // namespace ksrv
