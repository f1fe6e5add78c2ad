"""Sends SIGHUP to ksrv when a file below the given folders has changed.

    python reload.py FOLDER...

Kubernetes replaces the files of a mounted secret by pointing a link to another folder, so the contents of
the files are compared. If ksrv cannot use the files, it refuses the reload and keeps serving; the next change sends
SIGHUP again. Runs beside ksrv in one process namespace, as the same user.
"""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

SECONDS = float(os.environ.get("RELOAD_SECONDS", "5"))


def contents(folders: list[Path]) -> str:
    """Return a digest of every file's name and bytes."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if path.is_file():
                digest.update(str(path).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def serves(process: int) -> bool:
    """Whether a process is one of `ksrv serve`."""
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"serve" in words and any(Path(os.fsdecode(word)).name == "ksrv" for word in words)


def master() -> int | None:
    """Return the process that started the others of `ksrv serve`; None if no such process runs."""
    processes = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
    for process in sorted(process for process in processes if serves(process)):
        try:
            stat = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            continue
        if not serves(int(stat.rpartition(")")[2].split()[1])):
            return process
    return None


def main(folders: list[Path]) -> None:
    """Watch until a signal ends this process."""
    told = contents(folders)
    print(f"watching {', '.join(map(str, folders))}", flush=True)
    while True:
        time.sleep(SECONDS)
        try:
            now = contents(folders)
        except OSError as error:
            print(f"cannot be read, maybe while it changes: {error}", flush=True)
            continue
        if now != told and (process := master()) is not None:
            print(f"files have changed: SIGHUP to process {process}", flush=True)
            os.kill(process, signal.SIGHUP)
            told = now


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
