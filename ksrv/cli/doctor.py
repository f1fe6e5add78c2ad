"""`ksrv doctor`: what was found here, what it means for ksrv, and what to do about it."""

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import resource
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import click

import ksrv
from ksrv.cli.progress import Progress

Level: TypeAlias = Literal["ok", "note", "slow", "wrong"]

COLOURS = {"ok": "green", "note": "cyan", "slow": "yellow", "wrong": "red"}

REQUIRED = (
    "numpy", "opencv-python-headless", "falcon", "gunicorn", "grpcio", "protobuf", "msgspec",
    "orjson", "prometheus-client", "click", "PyYAML",
)  # fmt: skip
OPTIONAL = ("torch", "safetensors", "onnxruntime", "rich")

OPEN_FILES = 8192
"""Connections of the defaults (4096 of HTTP, a quarter of the files for gRPC) and some room."""

SHARED_MEMORY = 256 << 20

_SYS, _PROC = Path("/sys"), Path("/proc")


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        level: "ok"; "note": good to know; "slow": costs speed; "wrong": something does not work.
        subject: The thing that was looked at.
        found: Its state here.
        means: The consequence for ksrv, or "".
        do: How to change it, or "".
    """

    level: Level
    subject: str
    found: str
    means: str = ""
    do: str = ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _release(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _size(count: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"


def versions() -> Iterator[Finding]:
    """Look at ksrv, Python and the packages."""
    libc = " ".join(platform.libc_ver())
    yield Finding(
        "ok",
        "ksrv",
        f"{ksrv.__version__} on Python {platform.python_version()}, {libc}, "
        f"{platform.system()} {platform.release()}, {platform.machine()}",
    )
    try:
        importlib.import_module("ksrv._native.tensor.datatype")
        yield Finding("ok", "native core", "loads")
    except ImportError as error:
        yield Finding(
            "wrong", "native core", f"does not load: {error}",
            "nothing can be served",
            "install a wheel for this Python, or build it: pip install .",
        )  # fmt: skip
    found = {package: _release(package) for package in REQUIRED}
    missing = [package for package, release in found.items() if release is None]
    shown = ", ".join(f"{package} {release}" for package, release in found.items() if release)
    if missing:
        yield Finding(
            "wrong", "packages", f"missing: {', '.join(missing)}", "ksrv serve cannot start",
            f"pip install {' '.join(missing)}",
        )  # fmt: skip
    yield Finding("ok", "packages", shown)
    extras = {package: _release(package) for package in OPTIONAL}
    there = ", ".join(f"{package} {release}" for package, release in extras.items() if release)
    absent = [package for package, release in extras.items() if release is None]
    yield Finding(
        "note" if absent else "ok",
        "optional packages",
        there or "none",
        f"without {', '.join(absent)}: models that need them cannot be loaded" if absent else "",
        "pip install what your models need" if absent else "",
    )


def _cgroup_cores() -> float | None:
    """Return the cores that the container's quota allows, or None without one."""
    text = _read(_SYS / "fs/cgroup/cpu.max").split()
    if len(text) == 2 and text[0] != "max":
        return int(text[0]) / int(text[1])
    quota = _read(_SYS / "fs/cgroup/cpu/cpu.cfs_quota_us")
    period = _read(_SYS / "fs/cgroup/cpu/cpu.cfs_period_us")
    if quota.isdigit() and period.isdigit() and int(period):
        return int(quota) / int(period)
    return None


def processors() -> Iterator[Finding]:
    """Look at the CPU: cores, quota, instructions, clock."""
    model = re.search(r"^model name\s*:\s*(.+)$", _read(_PROC / "cpuinfo"), re.MULTILINE)
    usable = len(os.sched_getaffinity(0))
    quota = _cgroup_cores()
    shown = f"{usable} of {os.cpu_count()} usable, {model[1] if model else platform.machine()}"
    if quota is not None and quota < usable:
        yield Finding(
            "slow", "cores", f"{shown}; the container's quota is {quota:g}",
            f"ksrv starts threads for {usable} cores, and the kernel stops them all when the quota "
            f"of a period is used up: latency jumps by up to 100 ms",
            f"pin the container to {max(1, int(quota))} cores (cpuset), or set threads: in "
            f"model.yaml",
        )  # fmt: skip
    elif usable == 1:
        yield Finding(
            "slow", "cores", shown, "server and models take turns on one core",
            "give the process two cores or more",
        )  # fmt: skip
    else:
        yield Finding("ok", "cores", shown)
    load = os.getloadavg()[0]
    if load > usable:
        yield Finding(
            "slow", "load", f"{load:.1f} processes want to run on {usable} cores",
            "other programs slow ksrv down, and measurements here tell little",
            "look at `top`; measure when the machine is idle",
        )  # fmt: skip
    flags = set(re.findall(r"\w+", _read(_PROC / "cpuinfo")))
    if platform.machine() == "x86_64":
        if "avx2" in flags:
            yield Finding("ok", "instructions", f"AVX2{', AVX-512' if 'avx512f' in flags else ''}")
        else:
            yield Finding(
                "slow", "instructions", "no AVX2",
                "pixels and networks are computed several times slower",
                "choose a newer machine, or pass the host's CPU model to the virtual machine",
            )  # fmt: skip
    governors = {
        _read(path) for path in _SYS.glob("devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")
    }
    if not governors:
        yield Finding("ok", "CPU governor", "not visible here; the host decides")
    elif governors == {"performance"}:
        yield Finding("ok", "CPU governor", "performance")
    else:
        yield Finding(
            "slow", "CPU governor", ", ".join(sorted(governors)),
            "after a pause the clock is low, so single requests take longer",
            "cpupower frequency-set -g performance",
        )  # fmt: skip
    clock = _read(_SYS / "devices/system/clocksource/clocksource0/current_clocksource")
    if clock in ("hpet", "acpi_pm", "jiffies"):
        yield Finding(
            "slow", "clock", clock, "reading the time is a system call of a microsecond and more",
            "boot with clocksource=tsc if the machine has a stable one",
        )  # fmt: skip
    elif clock:
        yield Finding("ok", "clock", clock)


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
        small = size < SHARED_MEMORY
        yield Finding(
            "wrong" if small else "ok",
            "shared memory",
            f"/dev/shm has {_size(size)}",
            "models with executor: process pass tensors there, and large batches fail"
            if small
            else "",
            "docker run --shm-size=1g; in Kubernetes an emptyDir with medium: Memory"
            if small
            else "",
        )
    except OSError:
        yield Finding(
            "note", "shared memory", "there is no /dev/shm",
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
    """Look at what the system lets a process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < OPEN_FILES:
        yield Finding(
            "slow" if soft >= 1024 else "wrong", "open files", f"ulimit -n is {soft}, at most {hard}",
            f"a worker's {4096} connections do not fit, and gRPC holds {soft // 4} at most",
            f"ulimit -n {min(65536, hard) if hard > 0 else 65536}; LimitNOFILE= in a systemd unit",
        )  # fmt: skip
    else:
        yield Finding("ok", "open files", f"ulimit -n is {soft}")
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


def libraries() -> Iterator[Finding]:
    """Look at TLS, HTTP/2, protobuf and JPEG."""
    yield _tls()
    version = _nghttp2()
    carries = f"libnghttp2 {version}" if version else f"grpcio {_release('grpcio')}"
    yield Finding(
        "ok" if version else "slow",
        "HTTP/2",
        f"gRPC can be served by {carries}",
        "" if version else "a gRPC call costs several times the CPU",
        "" if version else "the system's libnghttp2 (Debian: apt-get install libnghttp2-14)",
    )
    try:
        from google.protobuf.internal import api_implementation

        backend = api_implementation.Type()
        if backend == "upb":
            yield Finding("ok", "protobuf", "upb backend")
        else:
            yield Finding(
                "wrong", "protobuf", f"{backend} backend", "gRPC cannot be served",
                "unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION",
            )  # fmt: skip
    except ImportError as error:
        yield Finding("wrong", "protobuf", str(error), "gRPC cannot be served",
                      "pip install protobuf")  # fmt: skip
    yield from _jpeg()


def _tls() -> Finding:
    try:
        from ksrv._native.tls.tls_context import openssl_version

        library = openssl_version()
    except ImportError:
        library = ""  # the core is not built, and another line says so
    except RuntimeError:
        return Finding(
            "slow", "TLS", f"HTTP can be served by {ssl.OPENSSL_VERSION} in Python alone",
            "a request over TLS costs about fifty times the CPU",
            "the system's OpenSSL 3 (Debian: apt-get install libssl3)",
        )  # fmt: skip
    old = library.startswith(("OpenSSL 3.0.", "OpenSSL 3.1."))
    return Finding(
        "slow" if old else "ok",
        "TLS",
        f"HTTP can be served by {library or ssl.OPENSSL_VERSION}",
        "OpenSSL 3.0 and 3.1 take several times the locks of later ones in each handshake"
        if old
        else "",
        "a system with OpenSSL 3.2 or newer, where clients connect often" if old else "",
    )


def _nghttp2() -> str | None:
    try:
        from ksrv._native.grpc.grpc_server import library_version
    except ImportError:
        return None  # the core is not built, and another line says so
    return library_version()


def _jpeg() -> Iterator[Finding]:
    try:
        from ksrv.images import jpeg
        from ksrv.images.opencv import load

        cv2 = load()
    except ImportError as error:
        yield Finding(
            "wrong", "JPEG", str(error), "images cannot be decoded",
            "pip install opencv-python-headless",
        )  # fmt: skip
        return
    import numpy as np

    found = re.search(r"^\s*JPEG:\s*(.+)$", cv2.getBuildInformation(), re.MULTILINE)
    shown = re.sub(r"\s+", " ", found[1]) if found else "unknown library"
    noise = np.random.default_rng(0).integers(0, 255, (30, 40, 3), np.uint8)
    encoded = cv2.imencode(".jpg", cv2.resize(noise, (1280, 960)))[1]
    file = encoded.tobytes()
    decoder = jpeg.decoder()
    picture = np.empty((960, 1280, 3), np.uint8)

    def decode() -> None:
        if decoder == "cv2" or not jpeg.decode_into(file, picture, "BGR"):
            cv2.imdecode(encoded, 1)

    decode()
    seconds = []
    for _ in range(5):
        start = time.thread_time()
        decode()
        seconds.append(time.thread_time() - start)
    rate = 1280 * 960 / min(seconds) / 1e6
    slow = (decoder == "cv2" and "turbo" not in shown) or rate < 40
    yield Finding(
        "slow" if slow else "ok",
        "JPEG",
        f"{decoder} (cv2 has {shown}): {rate:.0f} megapixels a second and core",
        "decoding images takes longer than it need" if slow else "",
        "pip install opencv-python-headless (its wheels have libjpeg-turbo)" if slow else "",
    )


def devices() -> Iterator[Finding]:
    """Look at accelerators and at the threads of the frameworks."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        if value := os.environ.get(variable):
            yield Finding(
                "note", "threads", f"{variable}={value}",
                "ksrv shares the cores out to instances by itself",
                f"unset {variable}, and write threads: in model.yaml where you want another number",
            )  # fmt: skip
    if importlib.util.find_spec("torch") is None:
        yield Finding("note", "torch", "not installed", "of the model files only .onnx can be "
                      "loaded, with onnxruntime", "pip install torch")  # fmt: skip
    else:
        yield from _torch()
    if importlib.util.find_spec("onnxruntime") is not None:
        import onnxruntime

        yield Finding("ok", "onnxruntime", ", ".join(onnxruntime.get_available_providers()))


def _torch() -> Iterator[Finding]:
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Finding("wrong", "torch", f"cannot be imported: {error}", "its models cannot be loaded",
                      "install it anew")  # fmt: skip
        return
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    if gpus:
        yield Finding("ok", "devices", f"cuda: {', '.join(gpus)}")
    elif torch.backends.mps.is_available():
        yield Finding("ok", "devices", "mps")
    elif Path("/dev/nvidia0").exists():
        build = torch.version.cuda or "no CUDA"
        yield Finding(
            "wrong", "devices", f"a GPU is there, and torch (built with {build}) cannot use it",
            "device: auto runs on the CPU",
            "install a torch that fits the driver: https://pytorch.org/get-started",
        )  # fmt: skip
    else:
        yield Finding(
            "ok", "devices", f"cpu; torch takes {torch.get_num_threads()} threads by itself"
        )


def settings() -> Iterator[Finding]:
    """Look at the variables that are settings."""
    from ksrv.server.settings import SettingsError
    from ksrv.server.settings_sources import resolve

    try:
        resolved = resolve()
    except SettingsError as error:
        yield Finding("wrong", "settings", str(error), "ksrv serve ends with this sentence",
                      "change or unset it")  # fmt: skip
        return
    for warning in resolved.warnings:
        yield Finding("note", "settings", warning)
    given = ", ".join(f"{key} ({origin})" for key, origin in resolved.origins.items())
    yield Finding("ok", "settings", given or "all defaults")
    if sys.flags.optimize > 1:
        yield Finding("note", "Python", "runs with -OO", "handlers have no docstrings")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    versions, processors, memory, limits, libraries, devices, settings,
)  # fmt: skip


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option(
    "--all/--problems", "everything", default=True, help="Print also the checks that pass."
)
def doctor(as_json: bool, everything: bool) -> None:
    """Say what this machine and environment mean for ksrv, and what to mend.

    Each finding says what was found, what it means, and what to do. The exit status is 1 where
    something is wrong, else 0. Put the output into a report of a fault.
    """
    found: list[Finding] = []
    with Progress() as progress:
        for examine in CHECKS:
            progress.show(f"looking at {examine.__name__}")
            try:
                found += examine()
            except Exception as error:  # noqa: BLE001 - a check that fails must not end the others
                text = f"cannot be looked at: {type(error).__name__}: {error}"
                found.append(Finding("note", examine.__name__, text))
    shown = [one for one in found if everything or one.level != "ok"]
    if as_json:
        click.echo(json.dumps({"findings": [asdict(one) for one in shown]}, indent=2))
    else:
        for one in shown:
            _print(one)
        counts = {level: sum(one.level == level for one in found) for level in COLOURS}
        click.echo("\n" + ", ".join(f"{count} {level}" for level, count in counts.items()))
    if any(one.level == "wrong" for one in found):
        raise click.exceptions.Exit(1)


def _print(one: Finding) -> None:
    mark = click.style(one.level.ljust(5), fg=COLOURS[one.level])
    click.echo(f"{mark}  {one.subject}: {one.found}")
    if one.means:
        click.echo(f"         means: {one.means}")
    if one.do:
        click.echo(f"         do:    {one.do}")
