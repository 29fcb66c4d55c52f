"""SoAR of larder, PostgreSQL, PostgreSQL with memcached, a MongoDB protocol server and Redis: the report's Figure 6.

Each store in turn has the machine to itself, with bg. Before each rating the population is loaded anew: bg judges
reads from what it loaded. peers.py says how the stores are set up.
"""

import argparse
import datetime
import json
import os
import shutil
import signal
import subprocess
import time

from chart import bars
from peers import Peers, machine

STORES = ["larder", "redis", "mongodb", "postgres", "postgres+memcached"]
MIXES = ["very-low-write", "low-write", "high-write"]
MIXES += [f"symmetric-{mix}" for mix in MIXES]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bg", required=True, help="the binary")
    parser.add_argument("--larder", required=True, help="the binary")
    parser.add_argument("--into", required=True, help="the folder of the results")
    parser.add_argument("--members", default=os.environ.get("MEMBERS", "10000"))
    parser.add_argument("--friends", default="100")
    parser.add_argument("--resources", default="100")
    parser.add_argument("--images", default="12K,none", help="sizes of profile images, or none")
    parser.add_argument("--stores", default=",".join(STORES))
    parser.add_argument("--mixes", default=",".join(MIXES))
    parser.add_argument("--sla", default="95% < 100ms, 0.1% unpredictable, 5s")
    parser.add_argument("--trial", default="2s")
    parser.add_argument("--within", type=float, default=45, help="seconds in which each rating is to be confirmed")
    return parser.parse_args()


def start(peers, store, options):
    """Address and settings of a store that runs."""
    if store == "larder":
        return peers.larder(options.larder), []
    if store == "redis":
        return peers.redis(), []
    if store == "mongodb":
        return peers.mongodb(), []
    settings = ["--set", "layout=aggregate"]
    if store == "postgres+memcached":
        settings += ["--set", f"memcached={peers.memcached()}", "--set", "consistency=lease"]
    return peers.postgres(), settings


def rate(options, address, settings, store, image, mix):
    """A row of the table."""
    population = ["--members", options.members, "--friends", options.friends, "--resources", options.resources]
    if image != "none":
        population += ["--image-size", image]
    common = ["--store", store, "--at", address, *settings, *population]
    # All figures of the rating; `bg report` makes a page of them.
    recorded = os.path.join(options.into, "bg-soar", f"{store}-{mix}-{image}".replace("+", "-"))
    shutil.rmtree(recorded, ignore_errors=True)
    began = time.monotonic()
    row = {"store": store, "image": image, "mix": mix}
    loaded = subprocess.run([options.bg, "load", *common], capture_output=True, text=True)
    row["load_s"] = time.monotonic() - began
    if loaded.returncode:
        return {**row, "end": "not loaded", "why": loaded.stderr.strip().splitlines()[-1]}
    command = [
        os.path.abspath(options.bg), "rate", *common, "--mix", mix, "--sla", options.sla, "--trial", options.trial,
        "--warmup", "300ms", "--tolerance", "5", "--trials", "2", "--first", "8", "--within", f"{options.within:.0f}s", "--json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        # Backing off from a load that does not hold takes longer than was asked for.
        told, said = process.communicate(timeout=4 * options.within)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        told, said = process.communicate()
    row["rate_s"] = time.monotonic() - began - row["load_s"]
    try:
        report = json.loads(told)
    except json.JSONDecodeError:
        return {**row, "end": "failed", "why": (said.strip().splitlines() or ["nothing said"])[-1]}
    os.makedirs(recorded)
    with open(os.path.join(recorded, "rating.json"), "w") as out:
        out.write(told)
    experiments = report["experiments"]
    if report["end"] != "rated":
        return {**row, "end": report["end"], "why": report["why"] or "no confirmed rating in four times the time"}
    shown = experiments[report["shown"] - 1]
    spread = report["spread"]
    used = [(one["processors_others"] or 0) + (one["processors_stolen"] or 0) for one in experiments]
    row |= {
        "end": report["end"],
        "soar": report["throughput"],
        "threads": report["load"],
        "least": spread and spread["least"],
        "most": spread and spread["most"],
        "trials": spread and spread["trials"],
        "others": max(used),
        "cut": any("the search ended" in note for note in report["notes"]),
        "experiments": len(experiments),
        "reads": sum(one["reads"] for one in experiments),
        "unpredictable": sum(one["unpredictable"] for one in experiments),
        "failed": sum(one["failed"] for one in experiments),
        "wrong": sum(one["wrong"] for one in experiments),
    }
    if shown:
        row |= {"p50_ms": shown["p50_us"] / 1e3, "p95_ms": shown["p95_us"] / 1e3, "processors": shown["processors_used"]}
    return row


def cell(row):
    if not row:
        return ""
    if "soar" not in row:
        return row["end"]
    return f"{row['soar']:,.0f}"


def place(row):
    return row["store"], row["image"], row["mix"]


def kept(options):
    """Rows of an earlier run that this one does not make again."""
    path = os.path.join(options.into, "bg-soar.jsonl")
    if not os.path.exists(path):
        return []
    again = [options.stores.split(","), options.images.split(","), options.mixes.split(",")]
    with open(path) as lines:
        rows = [json.loads(line) for line in lines]
    return [row for row in rows if not all(part in parts for part, parts in zip(place(row), again))]


def draw(path, title, image, mixes, stores, found):
    row = lambda mix, store: found.get((store, image, mix))
    value = lambda mix, store: (row(mix, store) or {}).get("soar")
    label = lambda mix, store: f"{store} {cell(row(mix, store))}".replace("\\", "")
    with open(path, "w") as out:
        out.write(bars(title, mixes, stores, value, label))


def write(options, rows):
    """The table so far, after each row: whoever ends this has what there is."""
    found = {place(row): row for row in rows}
    stores, images, mixes = (list(dict.fromkeys(parts)) for parts in zip(*found))
    with open(os.path.join(options.into, "bg-soar.jsonl"), "w") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
    with open(os.path.join(options.into, "bg-soar.md"), "w") as out:
        out.write(
            f"# SoAR, side by side\n\n"
            f"{options.members} members, {options.friends} friends and {options.resources} resources each; agreement `{options.sla}`; "
            f"trials of {options.trial}; `make bench-bg`, {datetime.date.today()}, {machine()}. Server and bg share the machine. "
            f"How each store is set up: `bench/bg/peers.py`. `bg-soar.tar.zst` has the JSON of each rating (`tar --zstd -xf`), of which `bg report` makes a page. Each figure is of a trial that confirmed it, within {options.within:.0f} s of search.\n"
        )
        for image in images:
            title = "Without images" if image == "none" else f"Profile images of {image}, thumbnails of 2K"
            title += ": actions a second under the agreement"
            picture = f"bg-soar-{image}.svg"
            draw(os.path.join(options.into, picture), title, image, mixes, stores, found)
            out.write(f"\n## {title}\n\n![the table below as bars]({picture})\n\n| store | {' | '.join(mixes)} |\n")
            out.write("|---|" + "---|" * len(mixes) + "\n")
            for store in stores:
                cells = [cell(found.get((store, image, mix))) for mix in mixes]
                out.write(f"| {store} | {' | '.join(cells)} |\n")
        out.write("\n## Each rating\n\n| store | image | mix | SoAR | least | most | threads | p50 ms | p95 ms | reads judged | unpredictable | failed | wrong | bg's processors | others' | experiments | load s | rating s |\n")
        out.write("|---" * 18 + "|\n")
        for row in rows:
            number = lambda name, form: format(row[name], form) if row.get(name) is not None else ""
            out.write(
                f"| {row['store']} | {row['image']} | {row['mix']} | {cell(row)} | {number('least', ',.0f')} | {number('most', ',.0f')} | {number('threads', 'd')} | {number('p50_ms', '.2f')} "
                f"| {number('p95_ms', '.2f')} | {number('reads', 'd')} | {number('unpredictable', 'd')} | {number('failed', 'd')} "
                f"| {number('wrong', 'd')} | {number('processors', '.2f')} | {number('others', '.2f')} | {number('experiments', 'd')} | {number('load_s', '.1f')} | {number('rate_s', '.1f')} |\n"
            )
        for row in rows:
            if row.get("why"):
                out.write(f"\n{row['store']}, {row['image']}, {row['mix']}: {row['why']}\n")


def pack(options, flag):
    """All figures of all ratings, into one file (`-c`) or out of it (`-x`)."""
    folder, packed = (os.path.join(options.into, name) for name in ("bg-soar", "bg-soar.tar.zst"))
    # A folder that is there is of a run that was ended, and newer.
    if flag == "-c" or os.path.exists(packed) and not os.path.exists(folder):
        os.makedirs(folder, exist_ok=True)
        subprocess.run(["tar", "--zstd", flag, "-f", packed, "-C", folder, "."], check=True)
    if flag == "-c":
        shutil.rmtree(folder)


def main():
    options = arguments()
    os.makedirs(options.into, exist_ok=True)
    pack(options, "-x")
    rows = kept(options)
    for store in options.stores.split(","):
        with Peers() as peers:
            address, settings = start(peers, store, options)
            for image in options.images.split(","):
                for mix in options.mixes.split(","):
                    row = rate(options, address, settings, store, image, mix)
                    rows.append(row)
                    write(options, rows)
                    print(
                        f"{store}, images {image}, {mix}: {cell(row)} actions/s with {row.get('threads', 0)} threads, "
                        f"{row.get('unpredictable', 0)} unpredictable, {row.get('failed', 0)} failed; "
                        f"loaded in {row['load_s']:.1f} s, rated in {row.get('rate_s', 0):.1f} s {row.get('why') or ''}",
                        flush=True,
                    )
    pack(options, "-c")


main()
