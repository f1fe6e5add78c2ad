"""Write docs/benchmarks.md and its plots from the results of `make bench-peers`.

python benchmarks/peers/page.py [benchmarks/results]
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
    "W5": "ResNet-18", "W6": "forest", "W7": "64 words streamed",
}  # fmt: skip
OPEN = ("W1", "W3", "W5")
"""Workloads that are measured at fixed rates."""
OURS = "ksrv"
LIMIT = "the limit"

HEAD = """# Benchmarks

With this page you can decide whether ksrv is fast enough for your work, and repeat the comparison on your own
machine:

```sh
make bench-peers
```

The command installs each server in a separate environment, gives all servers the same work, checks the answers,
measures, and writes this page. This run of {date} took {minutes:.0f} minutes on {cores} cores, with {rounds}
of {seconds:g} s for each row. The client shares the cores with the servers.

The table shows the CPU time of all processes of a server for one request, divided by the CPU time of ksrv. **2.0
means that the server needs twice the CPU time of ksrv.** "-" means that the server does not do the work in this form.
Rows without "gRPC" are HTTP/1.1, rows without "TLS" are cleartext; over HTTP the forest is asked by plain JSON. A
number in bold is below 1: that server needs less than ksrv.

"""

ABOUT = """
The limit is the least that the work can cost: a bare C server that validates nothing and answers a constant (W1, W2,
W4), or a loop over the model without a server (W3, W5, W6). A limit of 0.6 means that ksrv could save at most 40 %.

![CPU time of a request by workload](images/bench-cpu.svg)

## Latency at a fixed rate

Requests arrive at random times, whether or not the server has answered earlier requests. A latency counts from the
time at which the request was due. Each server gets half and 80 % of its capacity, and half and 80 % of the
capacity of the slowest server.

![99th percentile of latency at fixed rates](images/bench-latency.svg)

## Above the capacity

Each server gets 150 % of its capacity for {overload:g} s, then half of it. Goodput counts the answers in the first
part, divided by the capacity. Recovery is the time until latencies are again at most twice the usual latencies.

![Goodput and recovery](images/bench-overload.svg)

"""

LOADGEN = """## MLPerf's LoadGen

LoadGen of MLPerf Inference asks three models with random weights: `picture` has the layers of ResNet-50 with a
quarter of the channels (602 KB for a request), `text` has four layers of BERT with 128 units (sentences of 2 to 512
tokens, with the lengths of the sentences of this documentation), and `tree` is a forest of 100 trees. SingleStream is
the 90th percentile of latency, one query at a time. Offline is samples a second, all of them at once. Server is the
highest rate tried at which LoadGen calls the run valid: 99 % of the latencies are within {bounds}.

The first column is a loop over the model without a server. The other columns are ratios: **1.0 is as fast as the
loop, higher is better.** The client is written in Python and limits the `tree` rows.

"""

WHY = """

Known causes:

- **W5**: the model takes most of the time (column *limit*). The difference did not repeat: in twelve interleaved rounds
  on an idle machine (ten under TLS), FastAPI needed 1.03 of the CPU time of ksrv, in cleartext and under TLS.
- **Latency at a fixed rate, W1**: at 49 requests a second a run had 98 requests, and a 99th percentile is the slowest.
  In a run of 1,900 requests for each server, with the servers and the client at a higher priority than other work,
  FastAPI's 99th percentile was 2.03 times as long as ksrv's, and Falcon's 3.04 times.
- **Latency at a fixed rate, W5**: KServe, Triton and TorchServe run a request on two threads. ksrv, like FastAPI and
  Falcon, runs two requests at a time on one thread each, which is better for many clients. At 3 requests a second the
  median of ksrv is 1.70 of the median of KServe, and 0.97 of it with `instances: 1` and two threads. 16 clients then
  get 0.95 of the requests a second, for 1.07 of the CPU time.
"""
SINCE = """
## Measured again

ksrv has changed since this run, and no table, plot or list above has the results that follow. They were measured on 29
November 2026 with ksrv, FastAPI and Falcon only, while the machine had other work, so requests a second mean nothing:
`python benchmarks/peers/compare.py --servers ksrv FastAPI Falcon --parts closed --rounds 5`, and W5 with `--rounds 6
--seconds 4`. The ratios are CPU times as in the first table.

| work | ksrv, us | FastAPI | Falcon |
|---|---|---|---|
| W1 16 numbers | 11 | 12 | 24 |
| W5 ResNet-18 | 35,407 | 1.08 | 1.01 |
| W6 forest | 38 | 5.71 | 7.78 |
| W7 64 words streamed | 502 | 1.49 | 1.26 |
| W6 forest, TLS | 55 | 5.80 | failed |
| W7 64 words streamed, TLS | 691 | 1.39 | failed |

- **W7**: native code now writes the words of a stream. The three rows of W7 in the list of losses did not repeat.
- **W6 and `tree` over REST**: the run above asked ksrv by the JSON of KServe v2, and all others but MLServer and Triton
  by `instances` of v1. Now ksrv is asked by `instances`, too.
- **W5**: the cleartext rows of FastAPI and Falcon in the list of losses did not repeat. With rounds of 1.5 s, in which a
  server answers about 30 requests, FastAPI needed 1.05 and Falcon 0.91 of the CPU time of ksrv.
- All other rows of the list of losses were not measured again, except as the known causes say.
"""
"""Results that are younger than the run of the page. Empty it when `make bench-peers` has run again."""
SHOWN = """
## Padding and lazy models

Two measures have no server beside ksrv; their pages say more.

| measure | result | command |
|---|---|---|
| [requests of different lengths](batching.md#which-lengths-share-a-batch), 16 clients | 3.21 (REST) and 2.71 (gRPC) times the requests a second of one by one, 1.15 and 1.01 of a padded loop by hand without a network | `python benchmarks/load/padding.py` |
| the same, 64 clients | 4.68 and 4.33 times, 1.23 and 1.18 | the same |
| [500 models with memory for 50](reload.md#what-lazy-loading-costs) | no request failed; the 99th percentile of loaded models is 1.03 of always loaded | `python benchmarks/load/lazy_models.py` |

## More processors

The table has the requests a second of a server that may use one processor, and how many times as many it answers with
two. With one processor, the client has the other; with two, they share both.

| model | REST, 1 processor | REST, 2 | gRPC, 1 processor | gRPC, 2 |
|---|---|---|---|---|
| 16 numbers, an inline handler, 1 worker | 97,110 /s | 1.01 | 82,948 /s | 1.03 |
| the same, a worker for each processor | 97,775 /s | 1.02 | 83,304 /s | 1.23 |
| a millisecond of Python, an inline handler | 1,107 /s | 1.05 | 1,158 /s | 1.03 |
| the same, `executor: process` with an instance for each processor | 1,225 /s | 1.94 | 1,181 /s | 2.04 |
| ResNet-18, inline, an instance of one thread for each processor | 27 /s | 1.98 | 27 /s | 1.97 |
| 8 JPEGs, decoded by the threads of ksrv | 100 /s | 1.80 | 99 /s | 1.69 |

![Requests a second by processors](images/bench-scale.svg)

`python benchmarks/peers/scale.py --plot FILE.svg` measures 1, 2, 4, 8 and 16 processors, as many as the machine has.
`onnx` and `pictures` were measured with `--streams 16 --seconds 4`. The machine had two processors, so nothing here says
how a server uses more. The first two rows hardly grow, because the client takes as much CPU time for such a request as
ksrv. The third does not, because one thread at a time runs Python in a process.

## Left out

- The servers share two cores with the client, so requests a second mean little; CPU time of a request does not depend
  on this. The machine had two cores and no GPU.
- The weights are random, so nothing here says anything about accuracy. W1, W2 and W4 compute nothing: they show the
  server alone.
- Each server has one configuration for all workloads. The files are in `benchmarks/peers/apps`. Those of ksrv,
  FastAPI, LitServe and Triton also serve the model `text` of LoadGen, which their lines count.
- A fixed rate was held for 2,000 requests if these take {open_seconds:g} s at most, and for 10 s otherwise. With fewer than
  1,000 answers a 99th percentile is one of the slowest ten, so the list of losses then compares medians.
"""


def ratio_table(results: dict[str, Any]) -> str:
    """Return the table: CPU a request beside ksrv's, by row and server."""
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
                beside = [
                    shown_ratio(cells.get((*key, server), {}), own) for server in [LIMIT, *servers]
                ]
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
    """Return a server's CPU a request beside ksrv's, in bold if it takes less."""
    if row.get("failed"):
        return "failed"
    if not row.get("requests_s"):
        return "-"
    ratio = row["cpu_us"] / own["cpu_us"]
    text = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
    return f"**{text}**" if ratio < 1 and row["server"] != LIMIT else text


def loadgen_table(found: dict[str, Any]) -> str:
    """Return what LoadGen says of each system beside the loop."""
    cells = {(row["model"], row["system"]): row for row in found["rows"]}
    systems = [
        name for name in dict.fromkeys(row["system"] for row in found["rows"]) if name != "loop"
    ]
    names = [name.replace("-", ", ") for name in systems]
    lines = [f"| scenario | loop | {' | '.join(names)} |", "|---" * (len(systems) + 2) + "|"]
    for model in found["bound_ms"]:
        for key, title, unit in (("single_p90_ms", "SingleStream", "ms"), ("offline_s", "Offline", "/s"),
                                 ("server_s", "Server", "/s")):  # fmt: skip
            limit = cells.get((model, "loop"), {}).get(key)
            beside = [loop_share(cells.get((model, name), {}), key, limit) for name in systems]
            own = f"{limit:,.2f} {unit}" if limit else "no valid run"
            lines.append(f"| {model}, {title} | {own} | {' | '.join(beside)} |")
    return "\n".join(lines) + "\n"


def loop_share(row: dict[str, Any], key: str, limit: float | None) -> str:
    """Return how fast a system is beside the loop."""
    if row.get("failed"):
        return "failed"
    if limit is None or key not in row:
        return "-"
    if not row[key] or not limit:
        return "no valid run"
    return f"{limit / row[key] if key.endswith('ms') else row[key] / limit:.2f}"


def loadgen_losses(found: dict[str, Any]) -> list[str]:
    """Return a line for each scenario of a model in which another server is faster than ksrv over the same protocol."""
    cells = {(row["model"], *row["system"].split("-")): row for row in found["rows"] if row["system"] != "loop"}  # fmt: skip
    lines = []
    for (model, name, protocol), row in cells.items():
        own = cells.get((model, OURS, protocol), {})
        for key, title in (("single_p90_ms", "SingleStream"), ("offline_s", "Offline"), ("server_s", "Server")):  # fmt: skip
            if name == OURS or not row.get(key) or not own.get(key):
                continue
            times = own[key] / row[key] if key.endswith("ms") else row[key] / own[key]
            if times > 1:
                lines.append(f"- LoadGen, {model}, {title}, {protocol}: {name} is {times:.2f} times as fast as ksrv")  # fmt: skip
    return lines


FEW_ANSWERS = 1000
"""With fewer answers, medians are compared, because a 99th percentile is one of the slowest ten."""


def losses(results: dict[str, Any], found: dict[str, Any]) -> str:
    """Return a line for each row in which a server takes less CPU than ksrv or answers more."""
    own = {
        (row["workload"], row["transport"], row["protocol"]): row
        for row in results["closed"]
        if row["server"] == OURS and row.get("requests_s")
    }
    lines = loadgen_losses(found)
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
                f"- {where}: {row['server']} needs {row['cpu_us'] / mine['cpu_us']:.2f} of the CPU time of ksrv"
            )
        elif row["requests_s"] > mine["requests_s"]:
            lines.append(
                f"- {where}: {row['server']} answers {row['requests_s'] / mine['requests_s']:.2f} times as many requests a second"
            )
    fixed = {
        (row["workload"], row["protocol"], row["rate"]): row
        for row in results["open"]
        if row["server"] == OURS and row["of"] != "own"
    }
    for row in results["open"]:
        mine = fixed.get((row["workload"], row["protocol"], row["rate"]))
        if not mine or row["server"] == OURS:
            continue
        few = min(row.get("answered", 0), mine.get("answered", 0)) < FEW_ANSWERS
        key, name = ("p50_ms", "median") if few else ("p99_ms", "99th percentile")
        if row.get(key, 1e9) < mine.get(key, 1e9):
            lines.append(f"- {row['workload']}, {row['protocol']}, at {row['rate']:,.1f} requests a second: the {name} of {row['server']} is "
                         f"{row[key] / mine[key]:.2f} of ksrv's")  # fmt: skip
    return "\n".join(lines) if lines else "In no row of this run."


def server_table(results: dict[str, Any]) -> str:
    """Return what each server takes beside requests."""
    lines = [
        "| server | starts in | peak memory | installed | lines that a user writes | configuration |",
        "|---|---|---|---|---|---|",
    ]
    for name, facts in results["servers"].items():
        lines.append(
            f"| {name} | {facts['start_s']:.1f} s | {facts['peak_mb']:,} MB | {facts['install_mb']:,} MB | {facts['lines']} | {facts['about']} |"
        )
    return "\n".join(lines) + "\n"


def failures(results: dict[str, Any], found: dict[str, Any]) -> str:
    """Return a line for each server or row that did not work."""
    lines = [f"- {name}: `{last_line(why)}`" for name, why in results["left_out"].items()]
    lines += [f"- {row['server']}, {row['workload']}, {row['protocol']}, {row['transport']}: `{last_line(row['failed'])}`"
              for row in results["closed"] if "failed" in row]  # fmt: skip
    lines += [f"- LoadGen, {row['model']}, {row['system']}: `{last_line(row['failed'])}`"
              for row in found["rows"] if "failed" in row]  # fmt: skip
    return "\n".join(lines) if lines else "All rows worked."


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def last_line(text: str) -> str:
    """Return the last line that says something, cut to 160 characters; of a client that was ended, that it was."""
    if text.startswith("Command '["):
        return "the client had no answers within its time limit"
    lines = [line for line in text.replace("`", "'").splitlines() if line.strip(" >\t")]
    return lines[-1].strip()[:160] if lines else "no message"


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
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "benchmarks/results"
    results = json.loads((folder / "peers.json").read_text())
    found = json.loads((folder / "loadgen.json").read_text())
    matplotlib.rcParams["svg.hashsalt"] = "ksrv"
    (DOCS / "images").mkdir(exist_ok=True)
    plot_cpu(results, DOCS / "images/bench-cpu.svg")
    plot_latency(results, DOCS / "images/bench-latency.svg")
    plot_overload(results, DOCS / "images/bench-overload.svg")
    head = HEAD.format(
        minutes=results.get("minutes", 0) + found.get("minutes", 0), rounds=counted(results["rounds"], "interleaved round"),
        seconds=results["seconds"], cores=results["machine"]["cores"], date=results["machine"]["date"],
    )  # fmt: skip
    bounds = ", ".join(f"{bound} ms (`{model}`)" for model, bound in found["bound_ms"].items())
    parts = [
        head, ratio_table(results), ABOUT.format(overload=results["overload_seconds"]),
        LOADGEN.format(bounds=bounds), loadgen_table(found), "\n## Where ksrv loses\n\n", losses(results, found), WHY, SINCE,
        "\n## The servers\n\n", server_table(results), SHOWN.format(open_seconds=results["open_seconds"]),
        "\n## What did not work\n\n", failures(results, found), "\n",
    ]  # fmt: skip
    (DOCS / "benchmarks.md").write_text("".join(parts))


if __name__ == "__main__":
    main()
