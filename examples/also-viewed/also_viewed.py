"""Viewers of this also viewed: a batch job from `user item` lines to rows for larder.

Reads lines of a user and an item from standard input, or makes a sample with --sample, and writes
one JSON line per item: the items that most of its viewers viewed too, with how many did.
Only Python's standard library is needed.
"""

import argparse
import collections
import json
import random
import sys

# A user with more items says little about any two of them, and costs their square: the latest count.
ITEMS_PER_USER_MAX = 200


def read_views(lines):
    """Items by user, in the order of the lines, without repetitions."""
    views = collections.defaultdict(dict)
    for number, line in enumerate(lines, 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) < 2:
            sys.exit(f"line {number}: {line.strip()!r} is one word; write a user and an item")
        views[words[0]][words[1]] = True
    return views


def sample_lines(users, seed):
    """Users who each favour one of ten kinds of items, and popular items within it."""
    chance = random.Random(seed)
    for user in range(1, users + 1):
        kind = chance.randrange(10)
        for _ in range(chance.randint(3, 15)):
            yield f"{user} {kind * 100 + min(int(chance.paretovariate(0.8)), 99)}"


def also_viewed(views, most):
    """For each item, up to `most` pairs of another item and its common viewers, best first."""
    together = collections.defaultdict(collections.Counter)
    for items in views.values():
        latest = list(items)[-ITEMS_PER_USER_MAX:]
        for item in latest:
            together[item].update(latest)
    for item, others in together.items():
        del others[item]
        yield item, sorted(others.items(), key=lambda pair: (-pair[1], pair[0]))[:most]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, metavar="USERS", help="make views instead of reading them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=10, help="items per item (default 10)")
    arguments = parser.parse_args()
    lines = sample_lines(arguments.sample, arguments.seed) if arguments.sample else sys.stdin
    for item, others in also_viewed(read_views(lines), arguments.most):
        row = {"item": item, "also": [{"item": other, "viewers": viewers} for other, viewers in others]}
        print(json.dumps(row, separators=(",", ":")))


if __name__ == "__main__":
    main()
