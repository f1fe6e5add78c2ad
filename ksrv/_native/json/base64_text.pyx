# Safe without the GIL: functions use only local variables.
# cython: freethreading_compatible = True
"""Decodes base64 text. native/json/base64.hpp says what is accepted."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
cimport cython

from native.json.base64 cimport base64_decoded_size, decode_base64

from ksrv._native.memory.exported_bytes cimport ExportedBytes

if not cython.compiled:
    from typing_extensions import Buffer


cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL


class Base64Error(ValueError):
    """Text that is not base64."""


# From this length on decoding takes long enough for other threads to need the GIL.
cdef enum:
    LONG_TEXT_BYTES = 1 << 16


cdef bytes _decoded(const unsigned char *text, size_t length):
    cdef size_t size, end
    cdef unsigned char *out
    if not base64_decoded_size(text, length, &size):
        raise Base64Error(f"its length, {length}, is not a multiple of 4")
    cdef bytes made = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
    out = <unsigned char *>PyBytes_AS_STRING(made)
    if length < LONG_TEXT_BYTES:
        end = decode_base64(text, length, out)
    else:
        with nogil:
            end = decode_base64(text, length, out)
    if end != length:
        raise Base64Error(f"characters {end} to {end + 3} are not a group of base64")
    return made


def decode(text: str | Buffer) -> bytes:
    """Return the decoded bytes of a text.

    Args:
        text: A str, or the text's bytes in any contiguous buffer.

    Raises:
        Base64Error: The text has a character outside of the standard alphabet, white space, missing
            or misplaced padding, or bits after the last byte.
    """
    cdef ExportedBytes given
    cdef Py_ssize_t length
    cdef const char *characters
    if isinstance(text, str):
        characters = PyUnicode_AsUTF8AndSize(text, &length)
        return _decoded(<const unsigned char *>characters, <size_t>length)
    given.take(text)
    return _decoded(given.data, given.length)
