"""The values of worker processes and of the whole server, for the metrics page."""

import os
import resource
import time
from pathlib import Path
from typing import Annotated

from ksrv._native.memory import buffer_pool
from ksrv._native.memory.memory_budget import PROCESS
from ksrv.statistics import Counts, Row, gauge


class ProcessValues(Counts):
    """The values of one worker, or the sums of several; `process_...` are the names of all Prometheus libraries.

    Attributes:
        in_flight: Bytes that requests hold while they are received and served, and answers while sent.
        leased: Bytes of blocks in use.
        pooled: Bytes of blocks kept ready.
        resident: Memory of the workers.
        copied: Tensor bytes that were copied.
        virtual: Address space of all workers.
        cpu_ns: Processor time of all workers.
        open_files: Open files of all workers.
        most_files: Files that all workers may have open.
    """

    in_flight: Annotated[int, gauge("ksrv_bytes_in_flight")] = 0
    leased: Annotated[int, gauge("ksrv_buffer_pool_leased_bytes")] = 0
    pooled: Annotated[int, gauge("ksrv_buffer_pool_pooled_bytes")] = 0
    resident: Annotated[
        int, gauge("ksrv_worker_resident_bytes"), gauge("process_resident_memory_bytes")
    ] = 0
    copied: Annotated[int, Row("ksrv_copied_bytes")] = 0
    virtual: Annotated[int, gauge("process_virtual_memory_bytes")] = 0
    cpu_ns: Annotated[int, Row("process_cpu_seconds", unit=1e9)] = 0
    open_files: Annotated[int, gauge("process_open_fds")] = 0
    most_files: Annotated[int, gauge("process_max_fds")] = 0


class ServerValues(Counts):
    """Restarts, reloads and certificates of the whole server; times are seconds since 1970, and None is not shown.

    Attributes:
        restarts: Worker processes that ended without being stopped.
        last_reload: When the last reload of the server was asked for; 0 for never.
        last_reload_successful: Whether every worker of the last reload got ready.
        certificate_expiry: When the server's certificate ends.
        started: When the server was started.
    """

    restarts: Annotated[int, Row("ksrv_server_worker_restarts")]
    last_reload: Annotated[int, gauge("ksrv_last_reload_timestamp_seconds")]
    last_reload_successful: Annotated[bool, gauge("ksrv_last_reload_successful")]
    certificate_expiry: Annotated[int | None, gauge("ksrv_certificate_expiry_timestamp_seconds")]
    started: Annotated[
        int | None,
        gauge("ksrv_server_start_timestamp_seconds"),
        gauge("process_start_time_seconds"),
    ]


def process_values() -> ProcessValues:
    """Return the values of this process."""
    pool = buffer_pool.statistics()
    virtual, resident = _memory()
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ProcessValues(
        PROCESS.held,
        pool["leased_bytes"],
        pool["pooled_bytes"],
        resident,
        pool["copied_bytes"],
        virtual,
        time.process_time_ns(),
        _open_files(),
        0 if most_files == resource.RLIM_INFINITY else most_files,
    )


def _memory() -> tuple[int, int]:
    """Return the bytes of this process's address space and resident memory; 0 if /proc is missing."""
    try:
        fields = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0, 0
    page = os.sysconf("SC_PAGE_SIZE")
    return int(fields[0]) * page, int(fields[1]) * page


def _open_files() -> int:
    """Return how many descriptors this process has open; 0 if /proc is missing."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
