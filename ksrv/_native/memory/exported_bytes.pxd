"""The bytes of a Python object, exported while a function runs.

A typed memoryview in a signature would add 18,000 lines of C++ to the module.
"""

cdef extern from *:
    """
    namespace {

    // Lives on the stack of a function that holds the GIL. Releases the buffer when the function
    // ends.
    struct ExportedBytes {
        const unsigned char *data = nullptr;
        std::size_t length = 0;

        ExportedBytes() = default;
        ExportedBytes(const ExportedBytes &) = delete;
        ~ExportedBytes() { PyBuffer_Release(&view); }

        int take(PyObject *owner) {
            if (PyObject_GetBuffer(owner, &view, PyBUF_SIMPLE) != 0) return -1;
            data = static_cast<const unsigned char *>(view.buf);
            length = static_cast<std::size_t>(view.len);
            return 0;
        }

      private:
        Py_buffer view{};
    };

    }  // namespace
    """
    cppclass ExportedBytes:
        const unsigned char *data
        size_t length
        int take(object owner) except -1  # TypeError if the object does not export bytes
