"""redis-py's cluster client with a larder cluster of one node: python cluster.py PORT."""

import sys

import redis
from redis.cluster import RedisCluster

port = int(sys.argv[1])
for protocol in (2, 3):
    client = RedisCluster(host="127.0.0.1", port=port, protocol=protocol)
    (node,) = client.get_nodes()
    assert (node.host, node.port, node.server_type) == ("127.0.0.1", port, "primary"), node
    assert client.cluster_info()["cluster_state"] == "ok"
    assert client.cluster_keyslot("post|{bob}|17") == client.keyslot("{bob}")

    rows = {f"post|{{u{user}}}|{post}": f"{user}.{post}" for user in range(20) for post in range(3)}
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

    assert sorted(client.scan_iter(match="post|*")) == sorted(key.encode() for key in rows)
    counts = f"posts{protocol}|<user> = count post|<user>|<id>"
    client.execute_command("JOIN.CREATE", f"count{protocol}", counts, target_nodes=node)
    assert client.get(f"posts{protocol}|{{u1}}") == b"3"
    assert client.delete(*[key for key in rows if "{u1}" in key]) == 3
    assert client.get(f"posts{protocol}|{{u1}}") is None
    replicas = RedisCluster(host="127.0.0.1", port=port, protocol=protocol, read_from_replicas=True)
    assert replicas.get("post|{u2}|0") == b"2.0"
    try:
        client.execute_command("SELECT", 1, target_nodes=node)
    except redis.exceptions.ResponseError as error:
        assert "cluster mode" in str(error), error
    else:
        raise AssertionError("SELECT 1 was accepted")
    for key in rows:
        client.delete(key)
print("content")
