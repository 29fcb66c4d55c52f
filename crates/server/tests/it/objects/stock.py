"""Hashes and JSON documents through redis-py, as in its own tests, in both protocol versions."""

import sys

import redis
from redis.commands.json.path import Path

port = int(sys.argv[1])


def same(found, expected):
    assert found == expected, f"{found!r}, not {expected!r}"


def refused(call, word):
    try:
        call()
    except redis.ResponseError as error:
        assert word in str(error), error
    else:
        raise AssertionError(f"nothing is refused, but {word} was to be")


for protocol in (2, 3):
    r = redis.Redis(port=port, protocol=protocol, decode_responses=True)
    r.flushall()
    same(r.hset("h:1", mapping={"name": "Il Sole", "price": 120}), 2)
    same(r.hset("h:1", "city", "Rome"), 1)
    same(r.hget("h:1", "price"), "120")
    same(r.hgetall("h:1"), {"name": "Il Sole", "price": "120", "city": "Rome"})
    same(r.hmget("h:1", ["city", "none"]), ["Rome", None])
    same(r.hincrby("h:1", "price", 5), 125)
    same(r.hincrbyfloat("h:1", "rate", 1.5), 1.5)
    same(r.hexists("h:1", "city"), True)
    same(sorted(r.hkeys("h:1")), ["city", "name", "price", "rate"])
    same(r.hlen("h:1"), 4)
    same(dict(r.hscan_iter("h:1", match="n*")), {"name": "Il Sole"})
    same(r.hscan("h:1", no_values=True)[0], 0)
    same(len(r.hrandfield("h:1", 2)), 2)
    same(r.hdel("h:1", "rate", "none"), 1)
    same(r.hexpire("h:1", 100, "city", "none"), [1, -2])
    same(r.httl("h:1", "city", "name"), [100, -1])
    same(r.hpersist("h:1", "city"), [1])
    same(r.hgetex("h:1", "city", ex=50), ["Rome"])
    same(r.hgetdel("h:1", "city"), ["Rome"])
    same(r.type("h:1"), "hash")
    same(list(r.scan_iter(match="h:*", _type="HASH")), ["h:1"])
    with r.pipeline() as pipe:
        pipe.hset("h:2", "f", 1)
        pipe.hincrby("h:2", "f", 1)
        pipe.expire("h:2", 100)
        same(pipe.execute(), [1, 2, True])
    refused(lambda: r.get("h:1"), "WRONGTYPE")
    refused(lambda: r.lpush("h:1", 1), "unknown command")

    j = r.json()
    document = {"name": "Ann", "age": 30, "tags": ["a", "b"], "nested": {"n": 2.5, "on": True}}
    same(j.set("j:1", Path.root_path(), document), True)
    same(j.get("j:1"), document)
    same(j.get("j:1", "$.name"), ["Ann"])
    same(j.get("j:1", "$.name", "$.age"), {"$.name": ["Ann"], "$.age": [30]})
    same(j.set("j:1", "$.age", 31), True)
    same(j.set("j:1", "$.age", 32, nx=True), None)
    same(j.numincrby("j:1", "$.age", 1), [32])
    same(j.nummultby("j:1", "$.nested.n", 2), [5] if protocol == 2 else [5.0])
    same(j.arrappend("j:1", "$.tags", "c", "d"), [4])
    same(j.arrlen("j:1", "$.tags"), [4])
    same(j.arrindex("j:1", "$.tags", "c"), [2])
    same(j.arrinsert("j:1", "$.tags", 0, "z"), [5])
    same(j.arrpop("j:1", "$.tags"), ['"d"'])
    same(j.arrtrim("j:1", "$.tags", 0, 1), [2])
    same(j.strappend("j:1", "!", "$.name"), [4])
    same(j.strlen("j:1", "$.name"), [4])
    same(j.toggle("j:1", "$.nested.on"), [False])
    same(j.objkeys("j:1", "$.nested"), [["n", "on"]])
    same(j.objlen("j:1", "$.nested"), [2])
    same(j.type("j:1", "$.age"), ["integer"] if protocol == 2 else [["integer"]])
    same(j.merge("j:1", "$", {"age": None, "new": 1}), True)
    same(j.get("j:1", "$.age"), [])
    same(j.clear("j:1", "$.tags"), 1)
    same(j.mset([("j:2", "$", {"a": 2}), ("j:3", "$", {"a": 3})]), True)
    same(j.mget(["j:2", "j:3", "j:none"], "$.a"), [[2], [3], None])
    same(j.delete("j:1", "$.name"), 1)
    same(j.delete("j:1"), 1)
    same(j.get("j:1"), None)
    same(r.type("j:2"), "ReJSON-RL")
    refused(lambda: j.set("j:none", "$.a", 1), "new objects must be created at the root")
    r.close()

print("content")
