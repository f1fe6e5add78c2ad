"""Types of <sys/socket.h>, which Cython does not declare."""


cdef extern from "<sys/socket.h>" nogil:
    cdef struct sockaddr_storage:
        unsigned short ss_family
