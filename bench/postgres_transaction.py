"""One large PostgreSQL transaction: the time until every serving thread and every join has applied it, and where the time goes.

A mapped table, loaded on all serving threads, under a join that sums ten groups. Three transactions insert, update and delete the same rows. A
client reads the sums and `INFO postgres` all the while. The time begins when PostgreSQL has committed. For PostgreSQL's walsender, larder's
connection thread (`postgres`) and its serving threads (`resp-*`), Linux's `schedstat` says how long each ran, waited for a core and slept:
the bottleneck is the one that does not sleep.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import redis

sys.path.insert(0, str(Path(__file__).resolve().parent / "bg"))
from peers import Peers, machine  # noqa: E402

GROUPS = 10
TABLE = """[tables.item]
pattern = "item|<grp>|<id:10>"
table = "item"
value = "n"
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--larder", default="target/release/larder")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of larder's configuration")
    given = parser.parse_args()
    print(json.dumps({"machine": machine(), "load": os.getloadavg()[0], "set": given.set}), flush=True)
    with Peers() as peers:
        url = peers.postgres(wal_level="logical")
        sql = lambda text: subprocess.run(["psql", "-qAt", "-v", "ON_ERROR_STOP=1", "-c", text, url], check=True)
        sql("CREATE TABLE item (grp text, id bigint, n int, PRIMARY KEY (grp, id))")
        sql("CREATE PUBLICATION larder FOR TABLE item")
        insert = f"INSERT INTO item SELECT 'g' || i % {GROUPS}, i, 1 FROM generate_series"
        sql(f"{insert}(0, 99) i")
        larder, clients = serve(peers, url, given)
        last = given.rows + 99
        report = lambda what, text, sum: measure(what, lambda: sql(text), sum, larder, clients[0], given)
        report("insert", f"{insert}(100, {last}) i", given.rows + 100)
        report("update", "UPDATE item SET n = 3 WHERE id >= 100", 3 * given.rows + 100)
        report("delete", "DELETE FROM item WHERE id >= 100", 100)


def serve(peers, url, given):
    """Starts larder; returns its process, and clients on all of its threads, which have loaded the rows."""
    config = os.path.join(peers.folder, "larder.toml")
    Path(config).write_text(TABLE)
    command = [given.larder, "serve", "--json", "--config", config, "--data", os.path.join(peers.folder, "larder")]
    command += ["--resp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--set", "log.level=warn"]
    for key in [f"postgres.url={url}", f"server.threads={given.threads}", "tables.memory=4GB", *given.set]:
        command += ["--set", key]
    larder = peers.spawn("larder", command, stdout=subprocess.PIPE)
    host, port = json.loads(larder.stdout.readline())["resp"].split(":")
    clients = [redis.Redis(host=host, port=int(port), decode_responses=True, protocol=2) for _ in range(64)]
    while True:
        try:
            clients[0].execute_command("JOIN.CREATE", "total", "total|<grp> = sum item|<grp>|<id:10>")
            break
        except (redis.BusyLoadingError, redis.ResponseError):
            time.sleep(0.1)
    for client in clients:
        client.execute_command("RANGE", "total|", "total}")
        for group in range(GROUPS):
            client.get(f"total|g{group}")
    return larder, clients


def measure(what, transaction, wanted, larder, client, given):
    began = time.time()
    transaction()
    committed = time.time()
    before, sums, longest, whole = schedule(larder), set(), 0.0, False
    while not whole:
        asked = time.time()
        rows = client.execute_command("RANGE", "total|", "total}")
        settling = client.info("postgres")["postgres_settling"]
        longest = max(longest, time.time() - asked)
        total = sum(int(text) for text in rows[1::2])
        sums.add(total)
        whole = total == wanted and settling == 0
        time.sleep(0.01)
    seconds = time.time() - committed
    after = schedule(larder)
    threads = {
        name: {"ran_s": ran, "waited_s": waited, "slept_s": seconds - ran - waited}
        for name in sorted(after)
        for ran, waited in [(after[name][0] - before[name][0], after[name][1] - before[name][1])]
    }
    line = {"what": what, "rows": given.rows, "threads": given.threads, "statement_s": committed - began, "until_whole_s": seconds}
    line |= {"sums_seen": len(sums), "longest_read_ms": 1000 * longest}
    shown = lambda value: round(value, 2) if isinstance(value, float) else value
    line = {name: shown(value) for name, value in line.items()}
    line["where"] = {name: {part: shown(value) for part, value in parts.items()} for name, parts in threads.items()}
    print(json.dumps(line), flush=True)


def schedule(larder):
    """Seconds that the walsender and larder's threads ran and waited for a core so far."""
    tasks = [Path("/proc") / str(larder.pid) / "task" / number for number in os.listdir(f"/proc/{larder.pid}/task")]
    found = {(task / "comm").read_text().strip(): task for task in tasks}
    found = {name: task for name, task in found.items() if name == "postgres" or name.startswith("resp-")}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.joinpath("cmdline").read_text().startswith("postgres: walsender"):
                found["walsender"] = process
        except OSError:
            pass
    read = lambda task: tuple(int(part) / 1e9 for part in (task / "schedstat").read_text().split()[:2])
    return {name: read(task) for name, task in found.items()}


if __name__ == "__main__":
    main()
