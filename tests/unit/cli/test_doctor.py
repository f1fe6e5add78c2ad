"""`ksrv doctor`: its output on this machine, and its findings on simulated machines."""

import json
import resource
import sys

import pytest
from click.testing import CliRunner

from ksrv._native.tls import tls_context
from ksrv.cli import doctor
from ksrv.cli.main import main
from ksrv.doctor import machine as machine_checks
from ksrv.doctor import software
from ksrv.machine import cgroups


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A file system of /proc and /sys whose files the test writes."""
    monkeypatch.setattr(machine_checks, "_SYS", tmp_path / "sys")
    monkeypatch.setattr(machine_checks, "_PROC", tmp_path / "proc")

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    return write


def levels(check):
    return {one.subject: one for one in check()}


def test_doctor_runs_on_this_machine():
    done = CliRunner().invoke(main, ["doctor", "--json"])
    found = json.loads(done.output)["findings"]
    assert {"ksrv", "packages", "cores", "memory", "TLS", "HTTP/2", "JPEG", "allocator"} <= {
        one["subject"] for one in found
    }
    assert done.exit_code == any(one["level"] == "wrong" for one in found)
    assert all(one["found"] for one in found)
    assert all(one["means"] for one in found if one["level"] in ("slow", "wrong"))


def test_text_names_cause_and_remedy(monkeypatch):
    one = doctor.Finding("slow", "thing", "odd", "it is late", "mend it")
    fine = doctor.Finding("ok", "other", "fine")
    monkeypatch.setattr(doctor, "CHECKS", (lambda: iter([one, fine]),))
    done = CliRunner().invoke(main, ["doctor", "--problems"])
    assert done.exit_code == 0
    assert "slow   thing: odd" in done.output and "other" not in done.output
    assert "means: it is late" in done.output and "do:    mend it" in done.output
    assert "1 ok, 0 note, 1 slow, 0 wrong" in done.output


def test_failing_check_does_not_stop_the_others(monkeypatch):
    def broken():
        raise OSError("no such thing")

    wrong = doctor.Finding("wrong", "thing", "broken")
    monkeypatch.setattr(doctor, "CHECKS", (broken, lambda: iter([wrong])))
    done = CliRunner().invoke(main, ["doctor"])
    assert done.exit_code == 1
    assert "broken: cannot be looked at: OSError: no such thing" in done.output


def test_a_governor_that_saves_power_is_slow(machine):
    machine("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
    assert levels(machine_checks.processors)["CPU governor"].level == "slow"
    machine("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n")
    assert levels(machine_checks.processors)["CPU governor"].level == "ok"


def test_quota_below_the_cores_is_reported(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(cgroups.os, "sched_getaffinity", lambda pid: set(range(8)))
    machine("proc/self/cgroup", "0::/")
    machine("sys/fs/cgroup/cpu.max", "150000 100000")
    found = levels(machine_checks.processors)["cores"]
    assert (found.level, found.found.startswith("2 of ")) == ("ok", True)
    assert "quota is 1.5" in found.found
    machine("sys/fs/cgroup/cpu.max", "max 100000")
    assert levels(machine_checks.processors)["cores"].found.startswith("8 of ")
    machine("sys/fs/cgroup/cpu.max", "50000 100000")
    assert levels(machine_checks.processors)["cores"].level == "slow"


def test_slow_clock_is_reported(machine):
    machine("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet")
    assert levels(machine_checks.processors)["clock"].level == "slow"


@pytest.mark.parametrize(("soft", "level"), [(512, "wrong"), (1024, "slow"), (65536, "ok")])
def test_low_limit_of_open_files_is_reported(monkeypatch, soft, level):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, 65536))
    assert levels(machine_checks.limits)["open files"].level == level


def test_bad_kernel_settings_are_reported(machine):
    machine("proc/sys/net/core/somaxconn", "128")
    machine("proc/sys/net/ipv4/tcp_migrate_req", "0")
    found = levels(machine_checks.limits)
    assert (found["accept queue"].level, found["reloads"].level) == ("slow", "note")


def test_an_old_openssl_is_slow_and_a_missing_one_wrong(monkeypatch):
    monkeypatch.setattr(tls_context, "openssl_version", lambda: "OpenSSL 3.0.19 27 Jan 2026")
    assert levels(software.libraries)["TLS"].level == "slow"
    monkeypatch.setattr(tls_context, "openssl_version", lambda: "OpenSSL 3.5.0 8 Apr 2025")
    assert levels(software.libraries)["TLS"].level == "ok"

    def missing():
        raise RuntimeError("TLS: libssl.so.3 cannot be loaded")

    monkeypatch.setattr(tls_context, "openssl_version", missing)
    found = levels(software.libraries)["TLS"]
    assert found.level == "wrong" and "libssl3" in found.do


def test_missing_packages_are_wrong(monkeypatch):
    monkeypatch.setattr(software, "_release", lambda name: None if name == "falcon" else "1")
    [found] = [one for one in software.versions() if one.level == "wrong"]
    assert "falcon<5,>=4.2 (missing)" in found.found
    assert found.do == f"{sys.executable} -m pip install 'falcon<5,>=4.2'"


def test_packages_of_an_extra_are_installed_without_a_name_on_an_index(monkeypatch):
    monkeypatch.setattr(software, "_release", lambda name: None if name == "soxr" else "1")
    found = levels(software.versions)
    assert found["packages for audio"].level == "note"
    assert found["packages for audio"].do == f"{sys.executable} -m pip install 'soxr>=0.3'"
    assert found["packages for torch"].level == "ok"
    assert not {f"packages for {extra}" for extra in ("test", "demo", "bench")} & found.keys()


def test_command_is_uvs_in_an_environment_without_pip(monkeypatch):
    monkeypatch.setattr(software, "_release", lambda name: None)
    monkeypatch.setattr(software.importlib.util, "find_spec", lambda name: None)
    do = levels(software.versions)["packages for onnx"].do
    assert do == f"uv pip install --python {sys.executable} 'onnxruntime>=1.21'"


def test_invalid_settings_are_reported(monkeypatch):
    monkeypatch.setenv("KSRV_WORKERS", "many")
    assert levels(software.settings)["settings"].level == "wrong"
    monkeypatch.setenv("KSRV_WORKERS", "2")
    monkeypatch.setenv("KSRV_WROKERS", "2")
    found = list(software.settings())
    assert [one.level for one in found] == ["note", "ok"]
    assert "KSRV_WROKERS" in found[0].found and "workers" in found[1].found


def test_thread_variables_are_reported(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert levels(software.devices)["threads"].found == "OMP_NUM_THREADS=1"
