// Base class for reading the JSON of an infer header value by value, and for reporting faults.
#pragma once

#include <cstdint>

#include "json/scanner.hpp"
#include "infer/infer_header.hpp"

namespace ksrv {

// A method that returns false has set the fault.
class HeaderScanner {
public:
    HeaderScanner(const char *data, std::size_t length, const HeaderLimits &limits, InferHeader *out,
                  HeaderFault *fault) noexcept
        : begin_(data), c_{data, data + length}, limits_(limits), out_(*out), fault_(*fault) {}

protected:
    bool fail(HeaderError error, const char *at = nullptr) noexcept {
        fault_.error = error;
        fault_.offset = static_cast<std::size_t>((at ? at : c_.at) - begin_);
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
    bool skip() noexcept { return check(json::skip_value(c_, depth_, limits_.depth)); }
    bool more() noexcept { return c_.at != c_.end || fail(HEADER_END); }

    // Consumes null, which means the same as a missing value. Sets a fault for another word.
    bool null(bool *absent) noexcept {
        *absent = *c_.at == 'n';
        return !*absent || check(json::skip_word(c_, "null", 4));
    }

    bool string(Text *text) {
        const char *start = c_.at + 1;
        bool escaped = false;
        if (!check(json::skip_string(c_, &escaped))) return false;
        *text = {start, static_cast<std::size_t>(c_.at - 1 - start)};
        if (!escaped) return true;
        // Decoded strings are never longer than their encoded form, so that a block of the header's size is enough
        // for all.
        if (!out_.decoded) out_.decoded.reset(new char[static_cast<std::size_t>(c_.end - begin_)]);
        char *target = out_.decoded.get() + out_.decoded_length;
        text->length = json::decode_string(start, c_.at - 1, target);
        text->data = target;
        out_.decoded_length += text->length;
        return true;
    }

    bool string_field(const char *field, Text *text) {
        return *c_.at == '"' ? string(text) : fail_type(field, "a string");
    }

    bool boolean_field(const char *field, int *value) noexcept {
        if (*c_.at == 't') {
            *value = 1;
            return check(json::skip_word(c_, "true", 4));
        }
        if (*c_.at == 'f') {
            *value = 0;
            return check(json::skip_word(c_, "false", 5));
        }
        return fail_type(field, "true or false");
    }

    bool unsigned_field(const char *field, std::uint64_t *value) noexcept {
        const char *start = c_.at;
        bool integral = false, too_large = false;
        if (!json::is_digit(*start)) return fail_type(field, "an unsigned integer");
        if (!check(json::skip_number(c_, &integral))) return false;
        json::Cursor token{start, c_.at};
        if (!integral) return fail_type(field, "an unsigned integer", start);
        if (json::parse_digits(token, 20, UINT64_MAX, value, &too_large)) return true;
        fault_.field = field;
        return fail(HEADER_NUMBER, start);
    }

    // Reads the members of an object or an array up to `close`.
    template <class Member>
    bool members(char close, Member &&member) {
        if (++depth_ > limits_.depth) return fail(HEADER_DEPTH);
        ++c_.at;
        json::skip_space(c_);
        if (!more()) return false;
        if (*c_.at != close) {
            for (;;) {
                if (!more() || !member()) return false;
                json::skip_space(c_);
                if (!more()) return false;
                if (*c_.at == close) break;
                if (*c_.at != ',') return fail(HEADER_SYNTAX);
                ++c_.at;
                json::skip_space(c_);
            }
        }
        ++c_.at;
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
            if (*c_.at != '"') return fail(HEADER_SYNTAX);
            Text key;
            if (!string(&key)) return false;
            json::skip_space(c_);
            if (!more()) return false;
            if (*c_.at != ':') return fail(HEADER_SYNTAX);
            ++c_.at;
            json::skip_space(c_);
            return more() && field(key);
        });
    }

    bool once(unsigned *seen, unsigned bit, const Text &key) noexcept {
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

    const char *begin_;
    json::Cursor c_;
    const HeaderLimits &limits_;
    InferHeader &out_;
    HeaderFault &fault_;
    unsigned depth_ = 0;
};

}  // namespace ksrv
