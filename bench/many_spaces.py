"""The cost of a write on a server with many spaces: processor time of HSET of an object in one space, and of SET of an unrelated row.

Two servers, with one space and with `--spaces`, are measured in turn. Each has one serving thread. Writes are sent in pipelines of 200.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "bg"))
from peers import Peers, machine  # noqa: E402

PIPELINE = 200
KEYS = 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--larder", default="target/release/larder")
    parser.add_argument("--spaces", type=int, default=4000)
    parser.add_argument("--writes", type=int, default=200_000, help="of each kind in a round")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(json.dumps({"machine": machine(), "load": os.getloadavg()[0]}), flush=True)
    writes = {
        "HSET": lambda i: ["HSET", f"o0:{i % KEYS}", "name", "x", "n", str(i)],
        "SET": lambda i: ["SET", f"t|{i % KEYS}", "x"],
    }
    with Peers() as peers:
        servers = {count: Server(peers, given.larder, count) for count in (1, given.spaces)}
        taken = {(name, count): [] for name in writes for count in servers}
        for _ in range(given.rounds):
            for count, server in servers.items():
                for name, write in writes.items():
                    taken[name, count].append(server.microseconds(write, given.writes))
    for (name, count), us in taken.items():
        median, low, high = statistics.median(us), min(us), max(us)
        print(json.dumps({"command": name, "spaces": count, "us": median, "min_us": low, "max_us": high}), flush=True)


class Server:
    """A server with some spaces, and a connection to it."""

    def __init__(self, peers, larder, spaces):
        data = os.path.join(peers.folder, f"larder-{spaces}")
        command = [larder, "serve", "--json", "--data", data, "--resp", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        command += ["--set", "log.level=warn", "--set", "server.threads=1"]
        self.process = peers.spawn(f"larder-{spaces}", command, stdout=subprocess.PIPE)
        host, port = json.loads(self.process.stdout.readline())["resp"].split(":")
        self.socket = socket.create_connection((host, int(port)))
        self.replies = self.socket.makefile("rb")
        while not self.ask([["DBSIZE"]])[0].startswith(b":"):
            time.sleep(0.01)
        for space in range(spaces):
            create = ["FT.CREATE", f"s{space}", "PREFIX", "1", f"o{space}:", "SCHEMA", "name", "TAG", "n", "NUMERIC"]
            reply = self.ask([create])[0]
            assert reply == b"+OK\r\n", reply

    def ask(self, commands):
        parts = []
        for words in commands:
            parts.append(b"*%d\r\n" % len(words))
            parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in map(str.encode, words)]
        self.socket.sendall(b"".join(parts))
        return [self.replies.readline() for _ in commands]

    def microseconds(self, write, count):
        before = self.processor_seconds()
        for start in range(0, count, PIPELINE):
            replies = self.ask([write(i) for i in range(start, min(start + PIPELINE, count))])
            failed = [reply for reply in replies if reply[:1] not in b":+"]
            assert not failed, failed[0]
        return (self.processor_seconds() - before) / count * 1e6

    def processor_seconds(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
