"""redis-py as a client of Redis Cluster: python nodes.py HOST:PORT. For each line of its input, it uses the cluster and prints "content"."""

import sys

from redis.cluster import RedisCluster

host, port = sys.argv[1].split(":")
clients = [RedisCluster(host=host, port=int(port), protocol=protocol) for protocol in (2, 3)]


def work(client):
    assert client.cluster_info()["cluster_state"] == "ok"
    rows = {f"post|{{u{user}}}|{post}": f"{user}.{post}" for user in range(40) for post in range(3)}
    for key, value in rows.items():
        assert client.set(key, value)
    for key, value in rows.items():
        assert client.get(key) == value.encode()
    assert client.mget_nonatomic(rows) == [value.encode() for value in rows.values()]
    assert client.mget("post|{u1}|0", "post|{u1}|1") == [b"1.0", b"1.1"]

    pipeline = client.pipeline()
    for key in rows:
        pipeline.get(key)
    assert pipeline.execute() == [value.encode() for value in rows.values()]
    for key in rows:
        assert client.delete(key) == 1


for _ in sys.stdin:
    for client in clients:
        work(client)
    print("content", flush=True)
