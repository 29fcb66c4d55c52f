"""Reads a trace of bg by what docs/formats/trace.md says, and by nothing else: python3 trace.py DIR.

Prints as JSON how many records there are of each action and kind, and how many reads of what nobody ever wrote are not as it was at the start.
"""

import json
import os
import sys
from collections import Counter

MASK = (1 << 64) - 1


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def splitmix(x):
    return mix((x + 0x9E3779B97F4A7C15) & MASK)


def key(seed, item, element):
    half = lambda start: splitmix(splitmix(splitmix(seed ^ start) ^ item) ^ element)
    return half(0x243F6A8885A308D3) << 64 | half(0x13198A2E03707344)


def double(x):
    return (x << 1 ^ (0x11B if x & 0x80 else 0)) & 0xFF


def boxes():
    """AES's S-box: the inverse in GF(2^8), then an affine map."""
    exp, log, x = [0] * 255, {}, 1
    for power in range(255):
        exp[power], log[x] = x, power
        x ^= double(x)
    box = []
    for value in range(256):
        inverse = exp[-log[value] % 255] if value else 0
        rotated = [(inverse << turn | inverse >> (8 - turn)) & 0xFF for turn in range(5)]
        box.append(rotated[0] ^ rotated[1] ^ rotated[2] ^ rotated[3] ^ rotated[4] ^ 0x63)
    return box


BOX = boxes()
PI = bytes.fromhex(
    "243f6a8885a308d313198a2e03707344a4093822299f31d0082efa98ec4e6c89"
    "452821e638d01377be5466cf34e90c6cc0ac29b7c97c50dd3f84d5b5b5470917"
    "9216d5d98979fb1bd1310ba698dfb5ac2ffd72dbd01adfb7b8e1afed6a267e96"
    "ba7c9045f12c7f9924a19947b3916cf70801f2e2858efc16636920d871574e69"
)


def aes_round(state, key):
    out = bytearray(16)
    for column in range(4):
        a = [BOX[state[(column + row) % 4 * 4 + row]] for row in range(4)]
        for row in range(4):
            b, c, d, e = (a[(row + step) % 4] for step in range(4))
            out[column * 4 + row] = double(b) ^ double(c) ^ c ^ d ^ e ^ key[column * 4 + row]
    return bytes(out)


def checksum32(data, seed):
    lanes = [PI[at : at + 16] for at in range(0, 128, 16)]
    first = (seed + (len(data) << 64)).to_bytes(16, "little")
    lanes[0] = bytes(one ^ other for one, other in zip(lanes[0], first))
    data = data.ljust(128, b"\0")
    lanes = [aes_round(lane, data[at : at + 16]) for lane, at in zip(lanes, range(0, 128, 16))]
    for half in (4, 2):
        for lane in range(half):
            lanes[lane] = aes_round(lanes[lane], lanes[lane + half])
    for _ in range(3):
        lanes[0] = aes_round(lanes[0], lanes[1])
    return int.from_bytes(lanes[0][:4], "little")


def records(path):
    with open(path, "rb") as file:
        data = file.read()
    number = lambda at, size, **more: int.from_bytes(data[at : at + size], "little", **more)
    end = len(data) - 64
    if data[:8] != b"LARDTRC1" or number(8, 8) != 1 or data[end : end + 8] != b"LARDTEND" or len(data) % 64:
        raise SystemExit(f"{path} is no whole trace of format 1")
    checksum = 0
    for index, at in enumerate(range(64, end, 64)):
        checksum = checksum32(data[at : at + 64], checksum << 32 ^ index)
        yield {
            "item": number(at, 8),
            "start": number(at + 8, 8),
            "end": number(at + 16, 8),
            "payload": number(at + 24, 16, signed=data[at + 48] in (1, 2, 3)),
            "size": number(at + 40, 4),
            "what": data[at + 48],
            "outcome": data[at + 49],
            "action": data[at + 50],
        }
    if number(end + 8, 8) != end // 64 - 1 or number(end + 16, 8) != checksum:
        raise SystemExit(f"{path} was changed: its checksum is {checksum}")


class Before:
    """What there was before the first trial."""

    def __init__(self, folder):
        with open(os.path.join(folder, "population.json")) as file:
            self.numbers = json.load(file)
        self.graph = {}
        if self.numbers["graph"]:
            with open(os.path.join(folder, "friendships.edges"), "rb") as file:
                data = file.read()
            for at in range(0, len(data), 8):
                one, other = (int.from_bytes(data[at + part : at + part + 4], "little") for part in (0, 4))
                self.graph.setdefault(one, set()).add(other)
                self.graph.setdefault(other, set()).add(one)
        resources = range(self.numbers["resources"])
        self.shifts = [mix(self.numbers["seed"] ^ (j * 0x9E3779B9 & MASK)) % self.numbers["members"] for j in resources]

    def friends(self, member):
        if self.numbers["graph"]:
            return self.graph.get(member, set())
        steps = range(1, self.numbers["friends"] // 2 + 1)
        return {(member + sign * step) % self.numbers["members"] for step in steps for sign in (-1, 1)}

    def elements(self, item):
        kind, identity, members = item >> 56, item & (1 << 56) - 1, self.numbers["members"]
        if kind == 1:
            return self.friends(identity)
        if kind == 3:
            return set(range(self.numbers["comments"]))
        found, distance = [], 1 if self.numbers["graph"] else self.numbers["friends"] // 2 + 1
        while len(found) < self.numbers["invitations"]:
            inviter = (identity - distance) % members
            if inviter not in self.friends(identity):
                found.append(inviter)
            distance += 1
        return set(found)

    def content(self, item):
        if item >> 56 != 4:
            return 0
        member, members = item & (1 << 56) - 1, self.numbers["members"]
        wall = [(member - shift) % members * len(self.shifts) + j for j, shift in enumerate(self.shifts)]
        content = 0
        for resource in sorted(wall, reverse=True)[: self.numbers["top"]]:
            content = mix(content ^ mix(resource + 1))
        return content

    def is_as_read(self, read):
        if read["what"] == 7:
            return read["payload"] == self.content(read["item"])
        elements = self.elements(read["item"])
        if read["what"] == 1:
            return read["payload"] == len(elements)
        keys = 0
        for element in elements:
            keys ^= key(self.numbers["seed"], read["item"], element)
        return (read["size"], read["payload"]) == (len(elements), keys)


def main():
    folder = sys.argv[1]
    names = sorted(name for name in os.listdir(folder) if name.endswith(".trace"))
    every = [record for name in names for record in records(os.path.join(folder, name))]
    reads = [record for record in every if record["what"] in (1, 4, 7) and record["outcome"] == 0]
    writes = [record for record in every if record["what"] not in (1, 4, 7) and record["outcome"] != 1]
    written, before = {record["item"] for record in writes}, Before(folder)
    untouched = [read for read in reads if read["item"] not in written]
    print(json.dumps({
        "reads": len(reads),
        "writes": len(writes),
        "reads_by_kind": Counter(str(read["item"] >> 56) for read in reads),
        "reads_by_action": Counter(str(read["action"]) for read in reads),
        "untouched": len(untouched),
        "not_as_before": sum(not before.is_as_read(read) for read in untouched),
    }))


main()
