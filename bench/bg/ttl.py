"""How many reads are unpredictable when a cache keeps views for a time: the report's Figure 11.

PostgreSQL behind memcached. For each time to live the population is loaded anew and the same mix runs for the
same time; then the same with the writers deleting what they change, and with leases.
"""

import argparse
import datetime
import json
import os
import shutil
import subprocess
import tempfile

from peers import Peers, machine


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bg", required=True, help="the binary")
    parser.add_argument("--into", required=True, help="the folder of the results")
    parser.add_argument("--ttl", default="100ms,300ms,1s,3s,10s,30s", help="times to live")
    parser.add_argument("--duration", default="12s")
    parser.add_argument("--threads", default="8")
    parser.add_argument("--members", default="10000")
    parser.add_argument("--mix", default="symmetric-high-write")
    return parser.parse_args()


def run(options, postgres, memcached, settings):
    """What came of one trial, as `bg run --json` tells it."""
    folder = tempfile.mkdtemp(prefix="bg-trace-")
    command = [
        options.bg, "run", "--store", "postgres+memcached", "--at", postgres, "--load", "--quiet", "--json",
        "--set", f"memcached={memcached}", "--set", "layout=aggregate",
        "--members", options.members, "--friends", "20", "--resources", "10",
        "--mix", options.mix, "--threads", options.threads, "--duration", options.duration,
        "--trace", os.path.join(folder, "trace"),
    ]
    for setting in settings:
        command += ["--set", setting]
    try:
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return json.loads(told.stdout)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def summary(measured):
    reads = measured["reads"]
    latency = [pair for one in measured["actions"].values() for pair in one["latency_ns"]["values"]]
    calls = sum(count for _, count in latency)
    failed = sum(one["refused"] + one["unknown"] for one in measured["actions"].values())
    latency.sort()
    p95, seen = 0, 0
    for p95, count in latency:
        seen += count
        if seen >= calls * 0.95:
            break
    # Ages by their bits: the longest that is there, as its power of two.
    oldest = max((bits for bits, count in enumerate(reads["ages"]) if count), default=None)
    return {
        "throughput": (calls - failed) / measured["seconds"],
        "p95_ms": p95 / 1e6,
        "failed": failed,
        "reads": reads["reads"],
        "unpredictable": reads["unpredictable"],
        "percent": 100 * reads["unpredictable"] / max(reads["reads"], 1),
        "oldest_s": None if oldest is None else 2**oldest / 1e9,
        "classes": {name: count for name, count in reads["by_class"] if count},
    }


def milliseconds(ttl):
    return float(ttl[:-2]) if ttl.endswith("ms") else 1000 * float(ttl[:-1])


def plot(points):
    """Percent unpredictable over the time to live, both axes logarithmic, as SVG."""
    import math

    width, height, left, bottom = 640, 360, 70, 50
    points = [(ttl, percent) for ttl, percent in points if percent > 0]
    if len(points) < 2:
        return None
    low, high = min(t for t, _ in points), max(t for t, _ in points)
    floor = 10 ** math.floor(math.log10(min(p for _, p in points)))
    x = lambda t: left + (width - left - 20) * math.log(t / low) / math.log(high / low)
    y = lambda p: height - bottom - (height - bottom - 20) * math.log(p / floor) / math.log(100 / floor)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">']
    parts.append(f'<rect width="{width}" height="{height}" fill="white"/>')
    tick = floor
    while tick <= 100:
        parts.append(f'<line x1="{left}" x2="{width - 20}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g} %</text>')
        tick *= 10
    for ttl, _ in points:
        parts.append(f'<text x="{x(ttl):.1f}" y="{height - bottom + 18}" text-anchor="middle">{ttl / 1000:g} s</text>')
    line = " ".join(f"{x(t):.1f},{y(p):.1f}" for t, p in points)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#1f6feb" stroke-width="2"/>')
    parts += [f'<circle cx="{x(t):.1f}" cy="{y(p):.1f}" r="4" fill="#1f6feb"/>' for t, p in points]
    parts.append(f'<text x="{width / 2}" y="{height - 10}" text-anchor="middle">time to live</text>')
    parts.append('<text x="75" y="14">unpredictable reads</text></svg>')
    return "\n".join(parts) + "\n"


def main():
    options = arguments()
    os.makedirs(options.into, exist_ok=True)
    cases = [(ttl, ["consistency=ttl", f"ttl={ttl}"]) for ttl in options.ttl.split(",")]
    cases += [("deleted by writers", ["consistency=invalidate"]), ("leases", ["consistency=lease"])]
    rows = []
    with Peers() as peers:
        postgres, memcached = peers.postgres(), peers.memcached()
        for name, settings in cases:
            row = {"case": name, **summary(run(options, postgres, memcached, settings))}
            rows.append(row)
            print(f"{name}: {row['throughput']:.0f} actions/s, {row['percent']:.3f} % unpredictable", flush=True)
    with open(os.path.join(options.into, "bg-ttl.jsonl"), "w") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
    chart = plot([(milliseconds(name), row["percent"]) for (name, _), row in zip(cases, rows) if name[0].isdigit()])
    if chart:
        with open(os.path.join(options.into, "bg-ttl.svg"), "w") as out:
            out.write(chart)
    with open(os.path.join(options.into, "bg-ttl.md"), "w") as out:
        out.write(
            f"# A time to live against unpredictable reads\n\n"
            f"PostgreSQL behind memcached: {options.members} members, 20 friends and 10 resources each, mix {options.mix}, "
            f"{options.threads} threads, {options.duration} each, population loaded anew before each; "
            f"`make bench-bg-ttl`, {datetime.date.today()}, {machine()}. "
            f"An age is that of the oldest stale read, rounded up to a power of two.\n\n"
            f"| time to live | actions/s | p95 ms | reads judged | unpredictable | % | oldest s | failed |\n|---|---|---|---|---|---|---|---|\n"
        )
        for row in rows:
            oldest = "" if row["oldest_s"] is None else f"{row['oldest_s']:.2g}"
            out.write(
                f"| {row['case']} | {row['throughput']:.0f} | {row['p95_ms']:.2f} | {row['reads']} | {row['unpredictable']} "
                f"| {row['percent']:.4f} | {oldest} | {row['failed']} |\n"
            )
        if chart:
            out.write("\n![unpredictable reads over the time to live](bg-ttl.svg)\n")


main()
