"""A stock cluster client against a larder of several nodes, to which it goes by itself: python nodes.py PORT."""

import sys

import redis
from redis.cluster import RedisCluster

port = int(sys.argv[1])
for protocol in (2, 3):
    client = RedisCluster(host="127.0.0.1", port=port, protocol=protocol)
    nodes = {(node.host, node.port) for node in client.get_primaries()}
    assert len(nodes) == 3, nodes
    assert client.cluster_info()["cluster_state"] == "ok"

    rows = {f"post|{{u{user}}}|{post}": f"{user}.{post}" for user in range(40) for post in range(3)}
    for key, value in rows.items():
        assert client.set(key, value)
    for key, value in rows.items():
        assert client.get(key) == value.encode()
    asked = {client.get_node_from_key(key).port for key in rows}
    assert len(asked) == 3, asked
    assert client.mget_nonatomic(rows) == [value.encode() for value in rows.values()]
    assert client.mget("post|{u1}|0", "post|{u1}|1") == [b"1.0", b"1.1"]

    pipeline = client.pipeline()
    for key in rows:
        pipeline.get(key)
    assert pipeline.execute() == [value.encode() for value in rows.values()]
    for key in rows:
        assert client.delete(key) == 1
print("content")
