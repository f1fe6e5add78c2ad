"""CPU quota and memory limit of nested control groups, in both versions, as containers see them."""

import os

import pytest

from ksrv.engine import available_memory
from ksrv.machine import cgroups

V1 = "4:memory:/a/b\n3:cpu,cpuacct:/a/b\n0::/\n"
V2 = "0::/a/b\n"


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Write files of /proc and /sys below a temporary root."""
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(cgroups.os, "sched_getaffinity", lambda pid: set(range(64)))

    def write(own, **files):
        for name, text in {"proc/self/cgroup": own, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return write


def in_groups(**texts):
    """Files below /sys/fs/cgroup. `__` means a slash, `_dot_` a dot."""
    return {
        "sys/fs/cgroup/" + name.replace("__", "/").replace("_dot_", "."): text
        for name, text in texts.items()
    }


@pytest.mark.parametrize(
    ("own", "files", "quota", "threads"),
    [
        ("", {}, None, 64),
        (V2, in_groups(cpu_dot_max="200000 100000"), 2.0, 2),  # a container sees its group as the root
        (V2, in_groups(a__b__cpu_dot_max="150000 100000"), 1.5, 2),
        (V2, in_groups(a__b__cpu_dot_max="50000 100000"), 0.5, 1),
        (V2, in_groups(a__b__cpu_dot_max="max 100000"), None, 64),
        (V2, in_groups(a__cpu_dot_max="300000 100000", a__b__cpu_dot_max="max 100000"), 3.0, 3),
        (V2, in_groups(a__cpu_dot_max="300000 100000", a__b__cpu_dot_max="900000 100000"), 3.0, 3),
        (V2, in_groups(a__b__cpu_dot_max="12800000 100000"), 128.0, 64),
        ("0::/../other\n", in_groups(cpu_dot_max="400000 100000"), 4.0, 4),
        (V1, in_groups(cpu__a__b__cpu_dot_cfs_quota_us="250000", cpu__a__b__cpu_dot_cfs_period_us="100000"), 2.5, 3),
        (V1, in_groups(cpu__a__cpu_dot_cfs_quota_us="100000", cpu__a__cpu_dot_cfs_period_us="50000"), 2.0, 2),
        (V1, in_groups(cpu__cpu_dot_cfs_quota_us="100000", cpu__cpu_dot_cfs_period_us="100000"), 1.0, 1),
        (V1, in_groups(cpu__a__b__cpu_dot_cfs_quota_us="-1", cpu__a__b__cpu_dot_cfs_period_us="100000"), None, 64),
        ("3:cpu:/\n0::/x\n", in_groups(unified__x__cpu_dot_max="700000 100000"), 7.0, 7),
        (V2, in_groups(a__b__cpu_dot_max="what is this"), None, 64),
        ("no line of a group\n\n", in_groups(cpu_dot_max="200000 100000"), 2.0, 2),
    ],
)  # fmt: skip
def test_thread_count_follows_the_smallest_quota(system, own, files, quota, threads):
    system(own, **files)
    assert cgroups.cgroup_cores() == quota
    assert cgroups.usable_cores() == threads


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        (V2, in_groups(memory_dot_max="max"), None),
        (V2, in_groups(memory_dot_max="1000000"), 1_000_000),
        (V2, in_groups(a__memory_dot_max="2000000", a__b__memory_dot_max="max"), 2_000_000),
        (V2, in_groups(a__memory_dot_max="2000000", a__b__memory_dot_max="9000000"), 2_000_000),
        (V1, in_groups(memory__a__b__memory_dot_limit_in_bytes="3000000"), 3_000_000),
        (V1, in_groups(memory__memory_dot_limit_in_bytes="4000000"), 4_000_000),
        (
            V1,
            in_groups(
                memory__a__memory_dot_limit_in_bytes="5000000",
                memory__a__b__memory_dot_limit_in_bytes="9223372036854771712",
            ),
            5_000_000,
        ),
    ],
)
def test_budget_follows_the_smallest_memory_limit(system, own, files, limit):
    system(own, **files)
    assert cgroups.cgroup_memory() == limit
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert available_memory.machine_memory() == (limit or physical)


def test_unlimited_version_1_group_uses_the_machines_memory(system):
    system(V1, **in_groups(memory__a__b__memory_dot_limit_in_bytes="9223372036854771712"))
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert available_memory.machine_memory() == physical
