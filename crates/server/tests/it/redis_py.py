"""Typical uses of redis-py, with a larder server at the given port. The store s has the keys k0 to k99."""

import sys

import redis


def check(seen, expected):
    if seen != expected:
        raise SystemExit(f"{seen!r} is not {expected!r}")


def run(port, protocol):
    def connect():
        return redis.Redis(port=port, protocol=protocol, decode_responses=True)

    client, other = connect(), connect()
    client.flushall()

    # A transaction that is retried after a conflicting write.
    tries = []

    def add(pipe):
        before = int(pipe.get("n|a") or 0)
        if not tries:
            other.set("n|a", 10)
        tries.append(before)
        pipe.multi()
        pipe.set("n|a", before + 1)
        pipe.set("n|b", before)

    check(client.transaction(add, "n|a"), [True, True])
    check((tries, client.mget("n|a", "n|b")), ([0, 10], ["11", "10"]))
    with client.pipeline() as pipe:
        pipe.watch("n|a")
        other.incr("n|a")
        pipe.multi()
        pipe.get("n|a")
        try:
            pipe.execute()
            raise SystemExit("a watched row was written")
        except redis.WatchError:
            pass

    # By default, a pipeline is a transaction. This one uses tables and stores.
    pipe = client.pipeline()
    pipe.get("s:k1").set("t|a", "v").get("t|a").mget("s:k1", "s:none").incrbyfloat("t|f", 1.5).time()
    check(pipe.execute()[:5], ["v", True, "v", ["v", None], 1.5])

    client.setex("t|e", 100, "v")
    check((client.ttl("t|e"), client.getset("t|e", "w"), client.ttl("t|e")), (100, "v", -1))
    check((client.getdel("t|e"), client.getdel("t|e"), client.append("t|e", "x")), ("w", None, 1))
    check((client.rename("t|e", "u|e"), client.exists("t|e"), client.keys("u|*")), (True, 0, ["u|e"]))
    check(sorted(client.scan_iter("t|*")), ["t|a", "t|f"])
    check((client.msetnx({"m|a": 1, "n|a": 2}), client.setrange("t|a", 1, "yz")), (False, 3))
    check((client.expireat("t|a", 33177117420), client.expiretime("t|a")), (True, 33177117420))
    try:
        client.set("s:k1", "x")
        raise SystemExit("a store took a write")
    except redis.exceptions.ReadOnlyError:
        raise SystemExit("a write to a store was answered as by a replica")
    except redis.ResponseError as error:
        check(str(error).split()[0], "NOWRITE")

    # A feed, whose reader is notified of each post.
    client.execute_command(
        "JOIN.CREATE",
        "timeline",
        "tline|<user>|<time>|<author> = check sub|<user>|<author> copy post|<author>|<time>",
    )
    client.set("sub|ann|bob", 1)
    feed = client.pubsub()
    feed.psubscribe("__keyspace@0__:tline|ann|*")
    feed.subscribe("__keyspace@0__:t|a")
    check([feed.get_message(timeout=30)["type"] for _ in range(2)], ["psubscribe", "subscribe"])
    other.set("post|bob|0000000100", "hello")
    message = feed.get_message(timeout=30)
    key = message["channel"].removeprefix("__keyspace@0__:")
    check((message["type"], key, message["data"]), ("pmessage", "tline|ann|0000000100|bob", "set"))
    check(client.get(key), "hello")
    other.delete("t|a")
    check(feed.get_message(timeout=30)["data"], "del")
    feed.unsubscribe()
    feed.punsubscribe()
    feed.close()
    client.execute_command("JOIN.DROP", "timeline")
    check((client.flushdb(), client.keys("*"), client.get("s:k1")), (True, [], "v"))


for protocol in (2, 3):
    run(int(sys.argv[1]), protocol)
print("content")
