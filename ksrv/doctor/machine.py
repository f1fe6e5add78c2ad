"""Findings of `ksrv doctor` about the machine, its kernel and its limits."""

import os
import platform
import re
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

from ksrv.doctor.finding import Finding, judged
from ksrv.machine.cgroups import cgroup_cores, usable_cores

OPEN_FILES = 8192
"""Open files that a worker needs by default: 4096 HTTP connections, a quarter of the files for gRPC, and some room."""

SHARED_MEMORY = 256 << 20
"""Bytes of /dev/shm below which large batches to handler processes may fail."""

_SYS, _PROC = Path("/sys"), Path("/proc")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _size(count: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"


def processors() -> Iterator[Finding]:
    """Look at the CPU: cores, quota, instructions, clock."""
    model = re.search(r"^model name\s*:\s*(.+)$", _read(_PROC / "cpuinfo"), re.MULTILINE)
    usable = usable_cores()
    quota = cgroup_cores()
    shown = f"{usable} of {os.cpu_count()} usable, {model[1] if model else platform.machine()}"
    if quota is not None:
        shown += f"; the container's quota is {quota:g}"
    yield judged(
        usable > 1, "cores", shown,
        "slow", "server and models take turns on one core", "give the process two cores or more",
    )  # fmt: skip
    load = os.getloadavg()[0]
    if load > usable:
        yield Finding(
            "slow", "load", f"{load:.1f} processes want to run on {usable} cores",
            "other programs slow ksrv down, and measurements here tell little",
            "look at `top`; measure when the machine is idle",
        )  # fmt: skip
    flags = set(re.findall(r"\w+", _read(_PROC / "cpuinfo")))
    if platform.machine() == "x86_64":
        wide = ", AVX-512" if "avx512f" in flags else ""
        has_avx2 = "avx2" in flags
        yield judged(
            has_avx2, "instructions", f"AVX2{wide}" if has_avx2 else "no AVX2",
            "slow", "pixels and networks are computed several times slower",
            "choose a newer machine, or pass the host's CPU model to the virtual machine",
        )  # fmt: skip
    governors = {
        _read(path) for path in _SYS.glob("devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")
    }
    yield judged(
        governors <= {"performance"}, "CPU governor",
        ", ".join(sorted(governors)) or "not visible here; the host decides",
        "slow", "after a pause the clock is low, so single requests take longer",
        "cpupower frequency-set -g performance",
    )  # fmt: skip
    clock = _read(_SYS / "devices/system/clocksource/clocksource0/current_clocksource")
    if clock:
        yield judged(
            clock not in ("hpet", "acpi_pm", "jiffies"), "clock", clock,
            "slow", "reading the time is a system call of a microsecond and more",
            "boot with clocksource=tsc if the machine's TSC is stable",
        )  # fmt: skip


def memory() -> Iterator[Finding]:
    """Look at memory, shared memory, swap and the allocator."""
    from ksrv.engine.available_memory import bytes_in_flight, machine_memory
    from ksrv.limits import Limits

    total = machine_memory()
    yield Finding(
        "ok", "memory", f"{_size(total)} for this machine or container",
        f"requests and answers of a worker may hold {_size(bytes_in_flight(Limits()))} together",
        "--limits-in-flight changes that",
    )  # fmt: skip
    try:
        shared = os.statvfs("/dev/shm")
        size = shared.f_frsize * shared.f_blocks
        yield judged(
            size >= SHARED_MEMORY, "shared memory", f"/dev/shm has {_size(size)}",
            "wrong", "models with executor: process pass tensors there, and large batches fail",
            "docker run --shm-size=1g; in Kubernetes an emptyDir with medium: Memory",
        )  # fmt: skip
    except OSError:
        yield Finding(
            "note", "shared memory", "/dev/shm is missing",
            "clients cannot pass tensors by --allow-shared-memory",
        )  # fmt: skip
    swapped = re.search(r"^VmSwap:\s*(\d+)", _read(_PROC / "self/status"), re.MULTILINE)
    devices = _read(_PROC / "swaps").splitlines()[1:]
    if devices:
        yield Finding(
            "note", "swap", f"{len(devices)} areas; this process has {swapped[1] if swapped else 0} KiB there",
            "a model that was swapped out takes seconds for its next request",
            "swapoff -a, or vm.swappiness=1",
        )  # fmt: skip
    preload = os.environ.get("LD_PRELOAD", "")
    own = next((name for name in ("jemalloc", "tcmalloc", "mimalloc") if name in preload), "")
    yield Finding("ok", "allocator", own or f"{platform.libc_ver()[0] or 'the C library'}'s malloc")
    if "MALLOC_ARENA_MAX" in os.environ and not own:
        yield Finding(
            "slow", "allocator", f"MALLOC_ARENA_MAX={os.environ['MALLOC_ARENA_MAX']}",
            "threads wait for one another when they allocate", "unset it for ksrv",
        )  # fmt: skip


def limits() -> Iterator[Finding]:
    """Look at open files, processes, the accept queue, reloads and ports."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = f"ulimit -n is {soft}"
    yield judged(
        soft >= OPEN_FILES, "open files", shown if soft >= OPEN_FILES else f"{shown}, at most {hard}",
        "slow" if soft >= 1024 else "wrong",
        f"a worker's {4096} connections do not fit, and gRPC holds {soft // 4} at most",
        f"ulimit -n {min(65536, hard) if hard > 0 else 65536}; LimitNOFILE= in a systemd unit",
    )  # fmt: skip
    threads, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if 0 < threads < 1024:
        yield Finding(
            "wrong", "processes", f"ulimit -u is {threads}", "threads may fail to start",
            "raise it: ulimit -u 4096",
        )  # fmt: skip
    queue = _read(_PROC / "sys/net/core/somaxconn")
    if queue.isdigit() and int(queue) < 2048:
        yield Finding(
            "slow", "accept queue", f"net.core.somaxconn is {queue}",
            "bursts of new connections beyond it wait for a second and more; --backlog asks for 2048",
            "sysctl -w net.core.somaxconn=4096",
        )  # fmt: skip
    migrate = _read(_PROC / "sys/net/ipv4/tcp_migrate_req")
    if migrate == "0":
        yield Finding(
            "note", "reloads", "net.ipv4.tcp_migrate_req is 0",
            "a gRPC connection that waits to be accepted when a worker is replaced is reset",
            "sysctl -w net.ipv4.tcp_migrate_req=1",
        )  # fmt: skip
    for name, port in (("HTTP", 8080), ("gRPC", 9000)):
        with socket.socket() as probe:
            probe.settimeout(0.2)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                yield Finding(
                    "note", "ports", f"something listens on 127.0.0.1:{port}",
                    f"the default address for {name} is taken",
                    f"ksrv serve --{name.lower()} 127.0.0.1:PORT, or end the other program",
                )  # fmt: skip
