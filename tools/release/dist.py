"""Builds the source archive and the wheels of the last commit, each with its provenance.

    python3 tools/release/dist.py dist python3.11 python3.13

A wheel is built for each interpreter, from the source archive, with the packages of deploy/requirements/build.lock in a
new environment. Changes that are not committed are left out. SOURCE_DATE_EPOCH is the time of the commit. With
`--twice` everything is built again in another folder, and a file that differs ends the build. Only Python's standard
library, git, tar and a compiler are needed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = {"CXX", "HOME", "PATH", "RELEASE_BUILDER", "SSL_CERT_FILE", "TMPDIR"}
"""The variables that a build sees, beside pip's settings; flags of a compiler would change the files."""


class Commit:
    """The commit to build."""

    def __init__(self) -> None:
        self.name = self.git("rev-parse", "HEAD").decode().strip()
        self.epoch = self.git("log", "-1", "--format=%ct").decode().strip()
        if self.git("status", "--porcelain"):
            print("note: changes that are not committed are left out", flush=True)

    def git(self, *command: str) -> bytes:
        return subprocess.run(["git", *command], cwd=ROOT, check=True, capture_output=True).stdout

    def export(self, into: Path) -> None:
        into.mkdir()
        subprocess.run(["tar", "-x", "-C", into], input=self.git("archive", self.name), check=True)

    def environment(self, cache: bool = True) -> dict[str, str]:
        """Return the variables that a build sees.

        Args:
            cache: Whether ccache may be used.
        """
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in KEPT or name.startswith("PIP_")
        }
        fixed = {"LC_ALL": "C.UTF-8", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        if not cache:
            fixed["CCACHE_DISABLE"] = "1"
        return kept | fixed | {"SOURCE_DATE_EPOCH": self.epoch}


class Interpreter:
    """An environment with the locked packages, for one Python."""

    def __init__(
        self, python: str, folder: Path, source: Path, commit: Commit, cache: bool
    ) -> None:
        self.python = folder / "bin/python"
        self.source = source
        self.commit = commit
        self.environment = commit.environment(cache)
        self.environment["PATH"] = f"{folder / 'bin'}:{self.environment['PATH']}"
        subprocess.run([python, "-m", "venv", folder], check=True)
        lock = source / "deploy/requirements/build.lock"
        self.run("-m", "pip", "install", "-q", "--require-hashes", "-r", lock)

    def run(self, *command: str | Path, at: Path | None = None) -> None:
        done = subprocess.run(
            [self.python, *command], cwd=at or self.source, env=self.environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            sys.exit(f"{done.stdout}\nerror: {command[0]} {command[1]} failed with {self.python}")

    def archive(self, into: Path) -> Path:
        """Write the source archive, and return its path."""
        self.run("setup.py", "-q", "sdist", "-d", into)
        [archive] = into.glob("*.tar.gz")
        self.run("tools/release/reproducible_sdist.py", archive)
        return self.proven(archive)

    def wheel(self, unpacked: Path, into: Path) -> Path:
        """Write the wheel of an unpacked source archive, and return its path."""
        with tempfile.TemporaryDirectory(dir=unpacked.parent) as scratch:
            built, finished = Path(scratch, "built"), Path(scratch, "finished")
            finished.mkdir()
            command = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", built]
            self.run(*command, ".", at=unpacked)
            [wheel] = built.iterdir()
            self.run("tools/release/finish_wheel.py", wheel, finished)
            [wheel] = finished.iterdir()
            return self.proven(Path(shutil.copy(wheel, into)))

    def proven(self, file: Path) -> Path:
        self.run("tools/release/provenance.py", file, self.commit.name)
        return file


def build(commit: Commit, pythons: list[str], into: Path, cache: bool) -> None:
    """Write the source archive and the wheels into a folder.

    Args:
        cache: Whether ccache may be used.
    """
    into.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="ksrv-build-") as scratch:
        source = Path(scratch, "source")
        commit.export(source)
        unpacked = None
        for number, python in enumerate(pythons):
            folder = Path(scratch, f"python{number}")
            interpreter = Interpreter(python, folder, source, commit, cache)
            if unpacked is None:
                archive = interpreter.archive(into)
                subprocess.run(["tar", "-xf", archive, "-C", scratch], check=True)
                unpacked = Path(scratch, archive.name.removesuffix(".tar.gz"))
                print(f"built {archive.name}", flush=True)
            print(f"built {interpreter.wheel(unpacked, into).name}", flush=True)


def compare(first: Path, second: Path) -> None:
    """End the build unless two folders have the same files, to the bit."""
    names = {path.name for folder in (first, second) for path in folder.iterdir()}
    for name in sorted(names):
        pair = [folder / name for folder in (first, second)]
        if not all(path.exists() for path in pair) or len({p.read_bytes() for p in pair}) > 1:
            kept = first.parents[1] / "not-the-same"
            shutil.copytree(first.parent, kept, dirs_exist_ok=True)
            sys.exit(f"error: the second build has made another {name}: see {kept}")
    print(f"built twice: {len(names)} files, the same to the bit", flush=True)


def main() -> None:
    """Build into the folder that the command line names."""
    parser = argparse.ArgumentParser(description="Build ksrv's source archive and wheels.")
    parser.add_argument("into", type=Path, help="the folder of the files")
    parser.add_argument("pythons", nargs="+", help="the interpreters; a wheel is built for each")
    parser.add_argument("--twice", action="store_true", help="build again, and compare")
    given = parser.parse_args()
    os.umask(0o022)
    commit = Commit()
    into = given.into.resolve()
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into, prefix=".build-") as scratch:
        first, second = Path(scratch, "first"), Path(scratch, "the-second-time")
        build(commit, given.pythons, first, cache=True)
        if given.twice:
            # Without a cache, which would show the first build again.
            build(commit, given.pythons, second, cache=False)
            compare(first, second)
        shutil.copytree(first, into, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
