"""Locks, leaderboards and sets through redis-py, with a larder server at the given port."""

import sys

import redis
from redis.exceptions import LockError, LockNotOwnedError


def check(seen, expected):
    if seen != expected:
        raise SystemExit(f"{seen!r} is not {expected!r}")


def refused(call, error):
    try:
        call()
    except error:
        return
    raise SystemExit(f"no {error.__name__}")


def locks(client):
    for name in ["job", "lock|job"]:
        lock = client.lock(name, timeout=1000)
        other = client.lock(name, timeout=1000)
        check((lock.acquire(blocking=False), other.acquire(blocking=False)), (True, False))
        check((lock.owned(), lock.locked()), (True, True))
        check(lock.extend(2000), True)
        check(1_000_000 < client.pttl(name) <= 3_000_000, True)
        check(lock.extend(500, replace_ttl=True), True)
        check(client.pttl(name) <= 500_000, True)
        check(lock.reacquire(), True)
        check(500_000 < client.pttl(name) <= 1_000_000, True)
        lock.release()
        check(client.exists(name), 0)
        refused(lock.release, LockError)
        # A lock that another client holds by now.
        lock.acquire()
        client.set(name, "somebody")
        for call in [lambda: lock.extend(1), lock.reacquire, lock.release]:
            refused(call, LockNotOwnedError)
        check(client.get(name) in ("somebody", b"somebody"), True)
        client.delete(name)
        with client.lock(name, timeout=1000):
            check(client.exists(name), 1)
        check(client.exists(name), 0)


def leaderboards(client):
    definition = "leaders|<game>|<rank:2>|<user> = top 10 score|<game>|<user>"
    client.execute_command("JOIN.CREATE", "leaders", definition)
    client.mset({"score|chess|ann": 5, "score|chess|bob": 9.5, "score|chess|cid": 7})
    board = "leaders|chess"
    check(client.zrevrange(board, 0, 1), ["bob", "cid"])
    ranked = client.zrange(board, 0, -1, withscores=True)
    check([tuple(row) for row in ranked], [("ann", 5.0), ("cid", 7.0), ("bob", 9.5)])
    check(client.zrange(board, 6, "+inf", byscore=True), ["cid", "bob"])
    check(client.zrangebyscore(board, "-inf", 7, start=1, num=1), ["cid"])
    check(client.zscore(board, "bob"), 9.5)
    check(client.zmscore(board, ["ann", "nobody"]), [5.0, None])
    check((client.zcard(board), client.zcount(board, 6, 8)), (3, 1))
    check((client.zrank(board, "ann"), client.zrevrank(board, "ann")), (0, 2))
    check(client.zrank(board, "nobody"), None)
    client.incrby("score|chess|ann", 5)
    check(client.zrevrange(board, 0, 0), ["ann"])
    refused(lambda: client.zadd(board, {"dan": 1}), redis.ResponseError)


def sets(client):
    client.mset({"team|red|ann": 1, "team|red|bob": 1})
    check(client.smembers("team|red"), {"ann", "bob"})
    check((client.scard("team|red"), client.sismember("team|red", "ann")), (2, 1))
    check(client.smismember("team|red", ["ann", "cid"]), [1, 0])
    check(client.smembers("team|blue"), set())


def run(port, protocol):
    client = redis.Redis(port=port, protocol=protocol, decode_responses=True)
    client.flushall()
    locks(client)
    sets(client)
    if "leaders" in str(client.execute_command("JOIN.LIST")):
        client.execute_command("JOIN.DROP", "leaders")
    leaderboards(client)


for protocol in [2, 3]:
    run(int(sys.argv[1]), protocol)
print("content")
