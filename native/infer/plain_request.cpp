#include "infer/plain_request.hpp"

#include <algorithm>
#include <utility>

#include "json/number_array.hpp"
#include "json/number_writer.hpp"
#include "json/scanner.hpp"

namespace ksrv {

namespace {

// Walks a body of either form (plain_request.hpp). Functions return false for what is left to Python. An object of
// whole inputs is walked as a single row with the number 0.
class PlainBody {
  public:
    PlainBody(const PlainForm &form, const ModelSignature &signature, const unsigned char *body, std::size_t length) noexcept
        : form_(form), signature_(signature), c_{reinterpret_cast<const char *>(body), nullptr} {
        c_.end = c_.at + length;
        while (c_.end != c_.at && (c_.end[-1] == ' ' || c_.end[-1] == '\n')) --c_.end;
    }

    // Calls `value(input, row)` with the cursor at each value of an input. It moves the cursor past the value.
    template <class Value> bool walk(Value value) noexcept {
        if (c_.end == c_.at || c_.end[-1] != '}') return false;
        bool found = form_.rows.empty();  // whether the key of the rows was found, or the form has none
        rows_ = found;                    // 1 for an object of whole inputs; `instance` counts the rows of a list
        const bool walked = found ? row(value, 0) : object([&](std::string_view key) noexcept {
            if (key == form_.rows) {
                if (found) return false;
                return (found = true) && list('[', ']', [&]() noexcept { return instance(value); });
            }
            bool escaped = false;  // texts besides the rows, such as a "signature_name", have no effect
            return *c_.at == '"' && json::skip_string(c_, &escaped) == json::OK && !escaped;
        });
        return walked && found && c_.at == c_.end;
    }

    const char *at() const noexcept { return c_.at; }
    const char *end() const noexcept { return c_.end; }
    std::uint64_t rows() const noexcept { return rows_; }

    bool move_to(const char *at) noexcept {
        if (at) c_.at = at;
        return at != nullptr;
    }

    // Moves past a value that the second walk checks. The 2 levels around it are the body and its list of rows.
    bool skip() noexcept {
        if (*c_.at == '[') return json::skip_array(c_, 2, signature_.limits.depth) == json::OK;
        while (c_.at != c_.end && !std::memchr(",]} \n\r\t", *c_.at, 7)) ++c_.at;
        return true;
    }

  private:
    bool take(char wanted) noexcept {
        json::skip_space(c_);
        if (c_.at == c_.end || *c_.at != wanted) return false;
        ++c_.at;
        return true;
    }

    bool more() noexcept {
        json::skip_space(c_);
        return c_.at != c_.end;
    }

    template <class Item> bool list(char open, char close, Item item) noexcept {
        if (!take(open)) return false;
        do {
            if (!more() || !item()) return false;
        } while (take(','));
        return take(close);
    }

    template <class Member> bool object(Member member) noexcept {
        return list('{', '}', [&]() noexcept {
            const char *const start = c_.at + 1;
            bool escaped = false;
            if (*c_.at != '"' || json::skip_string(c_, &escaped) != json::OK || escaped) return false;
            const std::string_view key(start, static_cast<std::size_t>(c_.at - 1 - start));
            return take(':') && more() && member(key);
        });
    }

    // An object with the inputs of a row, or with whole inputs. All rows must have the same inputs. The key "b64" marks
    // base64, which only Python decodes.
    template <class Value> bool row(Value &value, std::uint64_t number) noexcept {
        unsigned given = 0;
        const bool walked = object([&](std::string_view key) noexcept {
            std::size_t input = 0;
            while (input < signature_.inputs.size() && key != signature_.inputs[input].name) ++input;
            if (input == signature_.inputs.size() || (given >> input & 1) || is(key, "b64")) return false;
            given |= 1u << input;
            return value(input, number);
        });
        if (number == 0) given_ = given;
        return walked && given == given_;
    }

    // An entry of the list of rows: an object, or the row of the only input.
    template <class Value> bool instance(Value &value) noexcept {
        const bool named = *c_.at == '{';
        if (rows_ == 0) named_ = named;
        if (named != named_) return false;
        if (named) return row(value, rows_++);
        return signature_.inputs.size() == 1 && value(0, rows_++);
    }

    const PlainForm &form_;
    const ModelSignature &signature_;
    json::Cursor c_;
    std::uint64_t rows_ = 0;
    unsigned given_ = 0;  // by the first row: a bit for each input
    bool named_ = false;  // the first row is an object
};

// Takes the shape of a row, to which `shape` adds the dimension of rows. A row may have fewer dimensions than declared
// if it has as many values.
bool take_row(const InputSignature &declared, std::size_t input, const std::int64_t *shape, std::size_t rank,
              FastRequestLayout *layout) noexcept {
    if (declared.padded || rank > declared.tail.size()) return take_shape(declared, input, shape, rank, layout);
    std::uint64_t values = 1;
    for (std::size_t i = 1; i < rank; ++i) values *= static_cast<std::uint64_t>(shape[i]);
    layout->given[input] = values * item_size_of(declared.datatype) == declared.row_bytes;
    return layout->given[input];
}

// Takes the shape of a whole input, which may lack its first dimensions. `shape` has room for them before it.
bool take_whole(const InputSignature &declared, std::size_t input, std::int64_t *shape, std::size_t rank,
                FastRequestLayout *layout) noexcept {
    const std::size_t wanted = declared.tail.size() + 1;
    if (rank > wanted) return false;
    const std::size_t missing = wanted - rank;
    std::int64_t *const whole = shape - missing;
    std::fill(whole, shape, 1);
    bool has_rows = missing == 0;
    if (!take_shape(declared, input, whole, wanted, layout)) {
        // [40, 31] for the shape [-1, 1]: a value for each row. A padded shape may fit without rows, but have another
        // length than the input before.
        if (missing == 0 || rank == 0 || declared.padded) return false;
        std::swap(whole[0], shape[0]);
        if (!take_shape(declared, input, whole, wanted, layout)) return false;
        has_rows = true;
    }
    const auto rows = static_cast<std::uint32_t>(whole[0]);
    if (layout->rows != 0 && layout->rows != rows) return false;
    layout->rows = rows;
    layout->has_rows = layout->has_rows || has_rows;
    return true;
}

}  // namespace

bool read_plain_request(const PlainForm &form, const ModelSignature &signature, const unsigned char *body,
                        std::size_t length, FastRequestLayout *layout) noexcept {
    // An object of inputs gets an object of outputs, which needs `has_fields`.
    if (length > signature.json_limit || (form.rows.empty() && !signature.has_fields)) return false;
    PlainBody walked(form, signature, body, length);
    const bool good = walked.walk([&](std::size_t input, std::uint64_t row) noexcept {
        if (row != 0) return walked.skip();
        const InputSignature &declared = signature.inputs[input];
        if (json_value_bytes(declared.datatype) == 0) return false;
        NestedShape found;
        if (!walked.move_to(read_nested(walked.at(), walked.end(), declared.datatype, nullptr, 0, &found))) return false;
        if (found.rank >= signature.limits.depth) return false;
        // The value's own shape, after room for further dimensions: `take_whole` writes missing dimensions before it,
        // and `take_row` has the dimension of rows there, which is not read.
        std::int64_t shape[2 * MAX_RANK + 1];
        std::int64_t *const own = shape + MAX_RANK + 1;
        std::copy_n(found.sizes, found.rank, own);
        return form.rows.empty() ? take_whole(declared, input, own, found.rank, layout)
                                 : take_row(declared, input, own - 1, found.rank + 1, layout);
    });
    if (!good) return false;
    if (!form.rows.empty()) layout->rows = static_cast<std::uint32_t>(walked.rows());
    if (!has_inputs(signature, *layout) || (signature.max_rows && layout->rows > signature.max_rows)) return false;
    layout->plain = &form;
    layout->length = layout->plain_length = length;
    for (std::size_t i = 0; i < signature.inputs.size(); ++i) {
        if (!layout->given[i]) continue;
        // A value has at least two bytes with its comma. More values are not there, and need no memory.
        const std::uint64_t row_bytes = signature.inputs[i].bytes_of_row(layout->row_length);
        const std::uint64_t most = length / 2 * item_size_of(signature.inputs[i].datatype);
        if (row_bytes == 0 || row_bytes > most / layout->rows) return false;
        reserve_copy(body, i, {}, static_cast<std::size_t>(row_bytes * layout->rows), layout);
    }
    return true;
}

bool copy_plain_inputs(const ModelSignature &signature, const FastRequestLayout &layout, unsigned char *body) noexcept {
    NestedShape shapes[FAST_INPUTS];
    PlainBody walked(*layout.plain, signature, body, layout.plain_length);
    return walked.walk([&](std::size_t input, std::uint64_t row) noexcept {
        const InputSignature &declared = signature.inputs[input];
        const std::uint64_t row_bytes = declared.bytes_of_row(layout.row_length);
        const std::uint64_t bytes = layout.plain->rows.empty() ? row_bytes * layout.rows : row_bytes;
        return row < layout.rows &&
               walked.move_to(read_nested(walked.at(), walked.end(), declared.datatype,
                                          body + layout.offsets[input] + row * row_bytes,
                                          bytes / item_size_of(declared.datatype), &shapes[input]));
    });
}

}  // namespace ksrv
