"""Findings of `ksrv doctor` about packages, libraries, frameworks and environment variables."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import ksrv
from ksrv.doctor.finding import Finding, judged

FOR_DEVELOPMENT = {"demo", "test", "bench"}
"""The extras of pyproject.toml that no server needs."""


def _requirements() -> dict[str, list[str]]:
    """Return the requirements in the metadata of the installed ksrv, by extra; "" is not an extra."""
    found: dict[str, list[str]] = {}
    for line in importlib.metadata.requires("ksrv") or ():
        extra = re.search(r"extra == \W(\w+)", line)
        found.setdefault(extra[1] if extra else "", []).append(line.partition(";")[0].strip())
    return found


def _to_install(requirements: list[str]) -> str:
    """Return the command that installs packages where this ksrv is installed; packages, because no index has ksrv."""
    has_pip = importlib.util.find_spec("pip") is not None
    pip = [sys.executable, "-m", "pip"] if has_pip else ["uv", "pip"]
    where = [] if has_pip else ["--python", sys.executable]
    return shlex.join([*pip, "install", *where, *requirements])


def _release(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


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
            "install the wheel of a release for this Python, or build it in a clone: pip install .",
        )  # fmt: skip
    for extra, requirements in _requirements().items():
        if extra in FOR_DEVELOPMENT:
            continue
        releases = {line: _release(re.split(r"[^\w.-]", line)[0]) for line in requirements}
        missing = [line for line, release in releases.items() if release is None]
        shown = ", ".join(f"{line} ({release or 'missing'})" for line, release in releases.items())
        yield judged(
            not missing, f"packages for {extra}" if extra else "packages", shown,
            "note" if extra else "wrong",
            "ksrv refuses what needs them" if extra else "ksrv serve cannot start",
            _to_install(missing),
        )  # fmt: skip


def libraries() -> Iterator[Finding]:
    """Look at TLS, HTTP/2, protobuf and JPEG."""
    yield _tls()
    version = _nghttp2()
    server = f"libnghttp2 {version}" if version else f"grpcio {_release('grpcio')}"
    yield judged(
        version is not None, "HTTP/2", f"gRPC can be served by {server}",
        "slow", "a gRPC call costs several times the CPU",
        "install a wheel of ksrv, or libnghttp2 (Debian: apt-get install libnghttp2-14)",
    )  # fmt: skip
    try:
        from google.protobuf.internal import api_implementation

        backend = api_implementation.Type()
        yield judged(
            backend == "upb", "protobuf", f"{backend} backend",
            "wrong", "gRPC cannot be served", "unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION",
        )  # fmt: skip
    except ImportError as error:
        yield Finding("wrong", "protobuf", str(error), "gRPC cannot be served",
                      _to_install(["protobuf"]))  # fmt: skip
    yield from _jpeg()


def _tls() -> Finding:
    try:
        from ksrv._native.tls.tls_context import openssl_version

        library = openssl_version()
    except ImportError:
        library = ""  # the core is not built, which another line reports
    except RuntimeError:
        return Finding(
            "wrong", "TLS", "OpenSSL 3 is missing (libssl.so.3)", "HTTP cannot be served with TLS",
            "the system's OpenSSL 3 (Debian: apt-get install libssl3)",
        )  # fmt: skip
    old = library.startswith(("OpenSSL 3.0.", "OpenSSL 3.1."))
    return judged(
        not old, "TLS", f"HTTP can be encrypted by {library or ssl.OPENSSL_VERSION}",
        "slow", "handshakes are slower than with OpenSSL 3.2 or newer",
        "use a system with OpenSSL 3.2 or newer if clients connect often",
    )  # fmt: skip


def _nghttp2() -> str | None:
    try:
        from ksrv._native.grpc.grpc_server import library_version
    except ImportError:
        return None  # the core is not built, which another line reports
    return library_version()


def _jpeg() -> Iterator[Finding]:
    """Decode an image of 1280 x 960 pixels five times; the fastest time counts."""
    try:
        from ksrv._native.images.jpeg_decoder import decode_jpeg_into
        from ksrv.images import jpeg
        from ksrv.images.opencv import load

        cv2 = load()
    except ImportError as error:
        yield Finding(
            "wrong", "JPEG", str(error), "images cannot be decoded",
            _to_install(["opencv-python-headless"]),
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
        if decoder == "cv2" or not decode_jpeg_into(file, picture, "BGR"):
            cv2.imdecode(encoded, 1)

    decode()
    seconds = []
    for _ in range(5):
        start = time.thread_time()
        decode()
        seconds.append(time.thread_time() - start)
    rate = 1280 * 960 / min(seconds) / 1e6
    slow = (decoder == "cv2" and "turbo" not in shown) or rate < 40  # megapixels a second
    yield judged(
        not slow, "JPEG",
        f"{decoder} (cv2 has {shown}): {rate:.0f} megapixels a second and core",
        "slow", "images take longer to decode than necessary",
        _to_install(["opencv-python-headless"]) + " (its wheels have libjpeg-turbo)",
    )  # fmt: skip


def devices() -> Iterator[Finding]:
    """Look at accelerators and at the threads of the frameworks."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        if value := os.environ.get(variable):
            yield Finding(
                "note", "threads", f"{variable}={value}",
                "ksrv shares the cores out to instances by itself",
                f"unset {variable}, and write threads: in model.yaml where you want another number",
            )  # fmt: skip
    if importlib.util.find_spec("torch") is not None:
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
