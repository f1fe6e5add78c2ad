"""Translates the `instance_group` of a config.pbtxt: how many instances a model has, and on which device."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ksrv.dialects.triton.config.model_keys import Keys
from ksrv.repository.report import Report, reasons_for

MOST_INSTANCES = 1024

_DEVICES = {"KIND_CPU": "cpu", "KIND_GPU": "cuda", "KIND_AUTO": "auto", "KIND_MODEL": "auto"}
_REFUSED = {
    "secondary_devices": "instances have one device each",
    "passive": "every instance takes requests",
}
_IGNORED = {
    "rate_limiter": "instances need no resources of a limiter",
    "profile": "profiles are TensorRT's",
    "host_policy": "instances have no host policies",
}


def instances_of(groups: Sequence[Keys] | None, report: Report) -> dict[str, Any]:
    """Return the settings `instances` and `device` for the groups. `report` takes refused and ignored keys."""
    if not groups:
        return {}
    for group in groups:
        report.refused |= reasons_for(group, _REFUSED, "instance_group.")
        report.ignored |= reasons_for(group, _IGNORED, "instance_group.")
    kinds = {group.kind or "KIND_AUTO" for group in groups}
    if len(kinds) > 1:
        report.refused["instance_group.kind"] = (
            f"instances of one model are on one kind of device, and these are {', '.join(sorted(kinds))}"
        )
        return {}
    [kind] = kinds
    numbers = [number for group in groups for number in group.gpus or ()]
    if numbers and not all(group.gpus for group in groups):
        report.refused["instance_group.gpus"] = (
            "of several groups, all name their GPUs or none does"
        )
        return {}
    device = _DEVICES[kind]
    instances = sum((group.count or 1) * max(1, len(group.gpus or ())) for group in groups)
    if instances > MOST_INSTANCES:
        report.refused["instance_group.count"] = (
            f"{instances} instances; a model has at most {MOST_INSTANCES}"
        )
        return {}
    shown = f"{instances} instances, device {device}"
    if numbers and kind in ("KIND_GPU", "KIND_AUTO"):
        device = _numbered(groups)
        shown = f"{instances} instances, device {device}"
    elif kind == "KIND_GPU":
        shown += " (in all; Triton has as many on each GPU)"
    report.applied["instance_group"] = shown
    return {"instances": instances, "device": device}


def _numbered(groups: Sequence[Keys]) -> str:
    """Return the device, with the GPU numbers that the instances take in turn.

    If every GPU has as many instances, each number is listed once, else once for each instance.
    """
    each = [
        number for group in groups for number in (group.gpus or ()) for _ in range(group.count or 1)
    ]
    counts = Counter(each)
    numbers = list(counts) if len(set(counts.values())) == 1 else each
    return f"cuda:{','.join(map(str, numbers))}"
