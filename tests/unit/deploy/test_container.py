"""The container file and the compose file. tests/integration/deploy runs the steps of the file."""

import fnmatch
import re
import subprocess

import pytest
import yaml

from ksrv import __version__
from ksrv.server.settings_sources import resolve
from tests.unit.deploy.packages import DEPLOY, need_program

ROOT = DEPLOY.parent
DOCKERFILE = DEPLOY / "docker/Dockerfile"
TEXT = re.sub(r"\\\n", " ", DOCKERFILE.read_text())


def steps(word):
    return re.findall(rf"^{word} (.*)$", TEXT, re.MULTILINE)


def test_hadolint_passes():
    done = subprocess.run(
        [need_program("hadolint"), "--no-color", str(DOCKERFILE)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def ignored(path):
    """Whether the rules of .dockerignore exclude a path from the build context."""
    lines = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().split()
    out = False
    for line in lines:
        pattern = line.lstrip("!").removeprefix("**/")
        if fnmatch.fnmatch(path, pattern) or fnmatch.fnmatch(path, f"{pattern}/*"):
            out = not line.startswith("!")
    return out


def test_copied_files_are_in_the_build_context():
    for step in steps("COPY"):
        if "--from" in step:
            continue
        for name in step.split()[:-1]:
            assert (ROOT / name).exists(), name
            assert not ignored(name), name
    assert ignored("tests/unit/deploy/test_container.py")
    assert ignored("ksrv/_native/_core.so")


def test_the_sources_of_the_wheel_are_copied():
    copied = {name for step in steps("COPY") if "--from" not in step for name in step.split()[:-1]}
    manifest = (ROOT / "MANIFEST.in").read_text()
    needed = set(re.findall(r"^graft (\S+)", manifest, re.MULTILINE))
    for line in re.findall(r"^include (.*)", manifest, re.MULTILINE):
        needed |= set(line.split())
    assert needed | {"ksrv", "setup.py", "pyproject.toml"} <= copied


def test_the_image_has_the_libraries_that_ksrv_loads():
    """The base image has the libraries of Python's ssl module."""
    sources = "".join(path.read_text() for path in (ROOT / "ksrv").rglob("*.py"))
    named = set(re.findall(r"Debian: apt-get install (\S+?)\)", sources)) - {"libssl3"}
    assert "libnghttp2-14" in named
    *_, installed = [step for step in steps("RUN") if "apt-get install" in step]
    assert named <= set(installed.split())


def test_container_runs_as_a_user_and_pip_needs_hashes():
    assert steps("USER") == ["1000:1000"]
    installs = re.findall(r"pip install ([^&\n]*)", TEXT)
    assert installs
    for words in installs:
        assert "--require-hashes" in words or "--no-index" in words, words
    assert "--insecure" not in TEXT and "KSRV_INSECURE" not in TEXT


def test_the_images_settings_are_ksrvs():
    [given] = steps("ENV PATH=/opt/ksrv/bin:\\$PATH")
    variables = dict(word.split("=", 1) for word in given.split() if word.startswith("KSRV_"))
    assert variables
    assert not resolve(environment=variables).warnings
    assert steps("EXPOSE") == ["8080 9000"]


COMPOSE = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())


def test_compose_file_mounts_existing_paths_and_publishes_on_loopback():
    for service in COMPOSE["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert service["cap_drop"] == ["ALL"]
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / "compose" / source).is_file(), source
    server = COMPOSE["services"]["ksrv"]
    assert server["image"] == f"ksrv:{__version__}"
    assert (DEPLOY / "compose" / server["build"]["context"]).resolve() == ROOT
    resolved = resolve(environment=server["environment"])
    assert not resolved.warnings
    least = resolved.settings.drain_delay + resolved.settings.stop_timeout
    assert int(server["stop_grace_period"].removesuffix("s")) > least
    assert server["read_only"] is True


@pytest.mark.parametrize("folder", ["kubernetes", "kserve", "compose"])
def test_images_have_the_version_of_the_sources(folder):
    image = re.compile(r"image: \S*?ksrv(?:-pull)?:([\w.]+?)(?:-torch)?$", re.MULTILINE)
    named = [
        v for path in (DEPLOY / folder).rglob("*.yaml") for v in image.findall(path.read_text())
    ]
    assert named and set(named) == {__version__}
