"""Write docs/benchmarks.md and its plots from the results of `make bench-peers`.

python benchmarks/peers/page.py [benchmarks/results/peers.json]
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
WORK = {
    "W1": "16 numbers", "W2": "602 KB tensor", "W3": "8 JPEGs", "W4": "64 MiB tensor",
    "W5": "ResNet-18", "W6": "forest, JSON", "W7": "64 words streamed",
}  # fmt: skip
OPEN = ("W1", "W3", "W5")
"""What is measured at fixed rates."""
OURS = "ksrv"
LIMIT = "the limit"

HEAD = """# Benchmarks

You can repeat everything on this page: `make bench-peers` installs each server in an environment of its own, has all of them do the
same work on this machine, checks their answers, and writes this page. It takes {minutes:.0f} minutes on {cores} cores.

CPU time of all the server's processes for one request, beside ksrv's. **2.0 means twice ksrv's**; "-" means that the server does not
do the work in this form. Cleartext HTTP/1.1 unless a row says gRPC; medians of {rounds} interleaved rounds.

"""

ABOUT = """
The limit is a bare C server that validates nothing and answers a constant (W1, W2, W4), or a loop over the model without any
server (W3, W5, W6). A value of the limit below 1 is what ksrv could still save.

![CPU a request by workload](images/bench-cpu.svg)

## Latency at a fixed rate

Requests arrive at random times, whether or not the server has answered the ones before, and a latency counts from when its request was due. The
plots show each server at half and at 80 % of what it can do, and all of them at half and at 80 % of what the slowest can do, over REST and gRPC.

![99th percentile at fixed rates](images/bench-latency.svg)

## Above its capacity

Three seconds at 150 % of what the server can do, then three seconds at half of it. Goodput is what it still answers, as a part of its
capacity; recovery is how long latencies stay above twice the usual ones.

![Goodput and recovery](images/bench-overload.svg)

"""

SHOWN = """
## What is not shown

- Two cores run the servers and the client. Requests a second saturate early there; CPU a request does not depend on it, so it is the
  figure of the table. Machines with many cores and GPUs are not shown.
- The models' weights are random, so nothing is said about accuracy. W1, W2 and W4 compute nothing, and show the server alone.
- Each peer has one configuration for all workloads. What it is stands below; the files are in `benchmarks/peers/apps`.
"""


def ratio_table(results: dict[str, Any]) -> str:
    """Return the one table: CPU a request beside ksrv's, by row and server."""
    cells: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in results["closed"]:
        protocol = "REST" if row["protocol"] == "none" else row["protocol"]
        cells[f"{row['workload']} {row['transport']}", protocol, row["server"]] = row
    servers = [name for name in results["servers"] if name != OURS]
    lines = [f"| work | ksrv, us | ksrv, req/s | limit | {' | '.join(servers)} |"]
    lines.append("|---" * (len(servers) + 4) + "|")
    for transport in ("cleartext", "TLS"):
        for protocol in ("REST", "gRPC"):
            for workload, name in WORK.items():
                key = f"{workload} {transport}", protocol
                own = cells.get((*key, OURS), {})
                if not own.get("requests_s"):
                    continue
                beside = [shown_ratio(cells.get((*key, one), {}), own) for one in [LIMIT, *servers]]
                form = " ".join(
                    part
                    for part in (
                        protocol if protocol == "gRPC" else "",
                        transport if transport == "TLS" else "",
                    )
                    if part
                )
                title = f"{workload} {name}{', ' + form if form else ''}"
                lines.append(
                    f"| {title} | {own['cpu_us']:,.0f} | {own['requests_s']:,.0f} | {' | '.join(beside)} |"
                )
    return "\n".join(lines) + "\n"


def shown_ratio(row: dict[str, Any], own: dict[str, Any]) -> str:
    """Return a server's CPU a request beside ksrv's, in bold where it takes less."""
    if row.get("failed"):
        return "failed"
    if not row.get("requests_s"):
        return "-"
    ratio = row["cpu_us"] / own["cpu_us"]
    text = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
    return f"**{text}**" if ratio < 1 and row["server"] != LIMIT else text


def losses(results: dict[str, Any]) -> str:
    """Return a line for each row in which a server takes less CPU than ksrv or answers more."""
    own = {
        (row["workload"], row["transport"], row["protocol"]): row
        for row in results["closed"]
        if row["server"] == OURS and row.get("requests_s")
    }
    lines = []
    for row in results["closed"]:
        mine = own.get((row["workload"], row["transport"], row["protocol"]))
        if (
            mine is None
            or row["server"] in (OURS, LIMIT)
            or not row.get("requests_s")
            or "failed" in row
        ):
            continue
        where = (
            f"{row['workload']} ({WORK[row['workload']]}), {row['protocol']}, {row['transport']}"
        )
        if row["cpu_us"] < mine["cpu_us"]:
            lines.append(
                f"- {where}: {row['server']} takes {row['cpu_us'] / mine['cpu_us']:.2f} of ksrv's CPU"
            )
        elif row["requests_s"] > mine["requests_s"]:
            lines.append(
                f"- {where}: {row['server']} answers {row['requests_s'] / mine['requests_s']:.2f} times ksrv's requests a second"
            )
    fixed = {
        (row["workload"], row["protocol"], row["rate"]): row
        for row in results["open"]
        if row["server"] == OURS and row["of"] != "own"
    }
    for row in results["open"]:
        mine = fixed.get((row["workload"], row["protocol"], row["rate"]))
        if mine and row["server"] != OURS and row.get("p99_ms", 1e9) < mine.get("p99_ms", 1e9):
            lines.append(f"- {row['workload']}, {row['protocol']}, at {row['rate']:,.0f} requests a second: {row['server']}'s 99th percentile is "
                         f"{row['p99_ms'] / mine['p99_ms']:.2f} of ksrv's")  # fmt: skip
    return "\n".join(lines) if lines else "In no row of this run."


def server_table(results: dict[str, Any]) -> str:
    """Return what each server takes beside requests."""
    lines = [
        "| server | starts in | peak memory | installed | lines of its user | configuration |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in results["servers"].items():
        lines.append(
            f"| {name} | {one['start_s']:.1f} s | {one['peak_mb']:,} MB | {one['install_mb']:,} MB | {one['lines']} | {one['about']} |"
        )
    return "\n".join(lines) + "\n"


def failures(results: dict[str, Any]) -> str:
    """Return a line for each server or row that did not work."""
    lines = [
        f"- {name}: {why.strip().splitlines()[-1]}" for name, why in results["left_out"].items()
    ]
    for row in results["closed"]:
        if "failed" in row:
            why = row["failed"].replace("\n", " ")[:160]
            lines.append(
                f"- {row['server']}, {row['workload']}, {row['protocol']}, {row['transport']}: `{why}`"
            )
    return "\n".join(lines) if lines else "None."


def plot_cpu(results: dict[str, Any], path: Path) -> None:
    """Plot CPU a request over REST by workload and server."""
    rows = [
        row
        for row in results["closed"]
        if row["transport"] == "cleartext" and row["protocol"] in ("REST", "none")
    ]
    servers = [*results["servers"], LIMIT]
    figure, axes = plt.subplots(figsize=(10, 4.5))
    for index, name in enumerate(servers):
        found = {
            row["workload"]: row["cpu_us"]
            for row in rows
            if row["server"] == name and row.get("cpu_us")
        }
        places = [
            list(WORK).index(workload) + (index - len(servers) / 2) * 0.08 for workload in found
        ]
        axes.plot(
            places,
            list(found.values()),
            "s" if name == OURS else "k_" if name == LIMIT else "o",
            label=name,
            markersize=7 if name == OURS else 5,
        )
    axes.set_yscale("log")
    axes.set_ylabel("CPU a request, us")
    axes.set_xticks(range(len(WORK)), [f"{key}\n{name}" for key, name in WORK.items()], fontsize=8)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=8, ncols=6, loc="upper center", bbox_to_anchor=(0.5, 1.18))
    finish(figure, path)


def plot_latency(results: dict[str, Any], path: Path) -> None:
    """Plot the 99th percentiles over the rates, over REST above and over gRPC below."""
    figure, all_axes = plt.subplots(2, 3, figsize=(11, 7.5))
    panels = [(protocol, workload) for protocol in ("REST", "gRPC") for workload in OPEN]
    for axes, (protocol, workload) in zip(all_axes.flat, panels, strict=True):
        rows = [row for row in results["open"] if (row["protocol"], row["workload"]) == (protocol, workload)]  # fmt: skip
        for name in results["servers"]:
            points = sorted(
                (row["rate"], row["p99_ms"]) for row in rows
                if row["server"] == name and row["share"] < 1 and row.get("p99_ms")
            )  # fmt: skip
            # One that does not speak the protocol has no points, and its colour all the same.
            axes.plot(
                *zip(*points, strict=True) if points else ([], []),
                "s-" if name == OURS else "o-",
                label=name,
                markersize=4,
            )
        axes.set(xlabel="requests a second", title=f"{workload} {WORK[workload]}, {protocol}")
        if rows:  # nothing has no logarithm
            axes.set(xscale="log", yscale="log")
        axes.grid(alpha=0.3)
    for axes in all_axes[:, 0]:
        axes.set_ylabel("99th percentile, ms")
    all_axes[0, 2].legend(fontsize=7)
    finish(figure, path)


def plot_overload(results: dict[str, Any], path: Path) -> None:
    """Plot goodput over REST at 150 % and the time until a server has recovered."""
    rows = [
        row
        for row in results["open"]
        if row["share"] > 1 and "goodput" in row and row["protocol"] == "REST"
    ]
    names = list(results["servers"])
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    for index, workload in enumerate(OPEN):
        of = {row["server"]: row for row in rows if row["workload"] == workload}
        places = [names.index(name) + (index - 1) * 0.25 for name in of]
        left.bar(
            places,
            [row["goodput"] for row in of.values()],
            0.25,
            label=f"{workload} {WORK[workload]}",
        )
        right.bar(places, [row["recovery_s"] for row in of.values()], 0.25)
    for axes, title in ((left, "goodput, of its capacity"), (right, "recovery, s")):
        axes.set_xticks(range(len(names)), names, rotation=45, fontsize=8)
        axes.set_title(title)
    left.legend(fontsize=8)
    finish(figure, path)


def finish(figure: Any, path: Path) -> None:
    """Write a figure; its bytes depend on nothing but the results."""
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Write the page."""
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "benchmarks/results/peers.json"
    results = json.loads(source.read_text())
    matplotlib.rcParams["svg.hashsalt"] = "ksrv"
    (DOCS / "images").mkdir(exist_ok=True)
    plot_cpu(results, DOCS / "images/bench-cpu.svg")
    plot_latency(results, DOCS / "images/bench-latency.svg")
    plot_overload(results, DOCS / "images/bench-overload.svg")
    head = HEAD.format(
        minutes=results.get("minutes", 0),
        rounds=results["rounds"],
        cores=results["machine"]["cores"],
    )
    parts = [
        head, ratio_table(results), ABOUT, "## Where ksrv loses\n\n", losses(results), "\n\n## The servers\n\n",
        server_table(results), SHOWN, "\n## What did not work\n\n", failures(results), "\n",
    ]  # fmt: skip
    (DOCS / "benchmarks.md").write_text("".join(parts))


if __name__ == "__main__":
    main()
