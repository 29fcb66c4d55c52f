"""redis-py's client-side cache of rows, hashes and join outputs, with a larder server at the given port."""

import sys

import redis
from redis.cache import CacheConfig


def check(seen, expected):
    if seen != expected:
        raise SystemExit(f"{seen!r} is not {expected!r}")


def run(port):
    other = redis.Redis(port=port, decode_responses=True)
    other.execute_command("JOIN.CREATE", "posts", "posts|<author> = count post|<author>|<time>")
    other.execute_command(
        "JOIN.CREATE", "timeline", "tline|<user>|<time>|<author> = check sub|<user>|<author> copy post|<author>|<time>"
    )
    other.set("sub|ann|bob", 1)
    client = redis.Redis(
        port=port, protocol=3, decode_responses=True, cache_config=CacheConfig(), single_connection_client=True
    )
    cache = client.get_cache()

    def check_cached(read, expected):
        check(read(), expected)
        cached = cache.size
        calls = int(other.info("stats")["total_commands_processed"])
        check(read(), expected)
        check(cache.size, cached)
        # The second INFO is the only command that reached the server in between.
        check(int(other.info("stats")["total_commands_processed"]) - calls, 1)

    for round in range(1, 4):
        other.set("t|a", f"v{round}")
        other.hset("h:1", "f", f"w{round}")
        other.set(f"post|bob|{round}", f"text {round}")
        # All invalidations arrive before the reply.
        client.ping()
        check_cached(lambda: client.get("t|a"), f"v{round}")
        check_cached(lambda: client.hget("h:1", "f"), f"w{round}")
        check_cached(lambda: client.get("posts|bob"), str(round))
        check_cached(lambda: client.get(f"tline|ann|{round}|bob"), f"text {round}")
        check_cached(lambda: client.get("s:k1"), "v")
    other.delete("sub|ann|bob")
    client.ping()
    # redis-py does not cache the absence of a key.
    check(client.get("tline|ann|3|bob"), None)
    other.flushall()
    client.ping()
    check(client.mget("t|a", "posts|bob"), [None, None])


run(int(sys.argv[1]))
print("content")
