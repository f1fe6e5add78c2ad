"""systemd accepts the units, and they match ksrv's settings."""

import configparser
import shutil
import subprocess

import pytest

from ksrv.server.settings_sources import resolve
from tests.unit.deploy.packages import DEPLOY

SYSTEMD = DEPLOY / "systemd"
UNITS = sorted(
    path.name for path in SYSTEMD.glob("ksrv*.*") if path.suffix in (".service", ".path")
)


def unit(name):
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(SYSTEMD / name)
    return parser


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path):
    for name in UNITS:
        text = (SYSTEMD / name).read_text().replace("/opt/ksrv/bin/ksrv", "/bin/true")
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / name) for name in UNITS)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    # Units of the test machine may have faults that do not matter here.
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "ksrv" in line]
    assert lines == []


def test_the_settings_file_is_ksrvs_and_ends_in_time():
    settings = resolve(environment={}, file=str(SYSTEMD / "ksrv.yaml")).settings
    service = unit("ksrv.service")["Service"]
    assert int(service["TimeoutStopSec"]) > settings.drain_delay + settings.stop_timeout + 5
    assert settings.token_file
    assert settings.tls_cert
    assert not settings.insecure
    watched = (SYSTEMD / "ksrv-reload.path").read_text()
    files = ("token_file", "control_token_file", "tls_cert", "tls_key")
    for name in (getattr(settings, file) for file in files):
        assert f"PathChanged={name}\n" in watched


def test_service_runs_as_a_separate_user():
    service = unit("ksrv.service")["Service"]
    assert service["User"] == "ksrv"
    assert (SYSTEMD / "ksrv.sysusers").read_text().splitlines()[-1].startswith("u ksrv ")
    for name in ("NoNewPrivileges", "PrivateTmp", "ProtectHome", "PrivateDevices"):
        assert service[name] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
