"""The search helpers ft() of redis-py, in both protocol versions. Prints "content" at the end."""

import sys

import redis
from redis.commands.search import aggregation, reducers
from redis.commands.search.field import GeoField, NumericField, TagField, TextField
from redis.commands.search.query import NumericFilter, Query

try:
    from redis.commands.search.index_definition import IndexDefinition, IndexType
except ImportError:
    from redis.commands.search.indexDefinition import IndexDefinition, IndexType


def refused(text, call):
    try:
        call()
    except redis.ResponseError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"not refused: {text}")


def of_hashes(client):
    ft = client.ft("hotels")
    refused("Unknown index name", ft.info)
    schema = (
        TagField("city", sortable=True),
        NumericField("price", sortable=True),
        TextField("name", weight=1.0),
        GeoField("place"),
    )
    definition = IndexDefinition(prefix=["hotel:"], index_type=IndexType.HASH)
    assert ft.create_index(schema, definition=definition)
    refused("already exists", lambda: ft.create_index(schema, definition=definition))
    hotels = [
        ("Rome", 120, "Albergo Aurora", "12.49,41.89"),
        ("Rome", 80, "Bella Vista", "12.51,41.90"),
        ("Paris", 200, "Aurora", "2.35,48.85"),
    ]
    for number, (city, price, name, place) in enumerate(hotels):
        fields = {"city": city, "price": price, "name": name, "place": place}
        assert client.hset(f"hotel:{number}", mapping=fields) == 4
    return ft


def searches(ft, resp3):
    def search(query, params=None):
        found = ft.search(query, query_params=params) if params else ft.search(query)
        if not resp3:
            return found.total, [(doc.id, doc) for doc in found.docs]
        if not isinstance(found, dict):
            return found.total, [(doc.id, doc) for doc in found.docs]
        rows = found.get("results", found.get(b"results"))
        return found["total_results"], [(row["id"], row) for row in rows]

    total, rows = search(Query("@city:{rome}").sort_by("price"))
    assert total == 2 and [key for key, _ in rows] == ["hotel:1", "hotel:0"], rows
    if not isinstance(rows[0][1], dict):
        assert rows[0][1].name == "Bella Vista" and rows[0][1].price == "80", rows[0]
    total, rows = search(Query("aurora").no_content().paging(0, 1))
    assert total == 2 and len(rows) == 1, rows
    total, _ = search(Query("*").add_filter(NumericFilter("price", 100, 150)))
    assert total == 1, total
    total, _ = search(Query("@place:[12.5 41.9 $radius km]").dialect(2), {"radius": 5})
    assert total == 2, total
    total, rows = search(Query("@price:[$low $high]").return_fields("city"), {"low": 150, "high": 300})
    assert total == 1 and rows[0][0] == "hotel:2", rows
    refused("Syntax error", lambda: ft.search(Query("@price:[1")))


def aggregates(ft, resp3):
    request = (
        aggregation.AggregateRequest("*")
        .group_by("@city", reducers.count().alias("n"), reducers.avg("@price").alias("mean"))
        .sort_by(aggregation.Desc("@n"))
        .apply(double="@mean * 2")
    )
    found = ft.aggregate(request)
    if not resp3 or not isinstance(found, dict):
        assert found.rows[0] == ["city", "Rome", "n", "2", "mean", "100", "double", "200"], found.rows
    request = aggregation.AggregateRequest("*").load("@__key").cursor(count=2)
    found = ft.aggregate(request)
    if not resp3 or not isinstance(found, (dict, list)):
        assert len(found.rows) == 2 and found.cursor.cid, found
        rest = ft.aggregate(found.cursor)
        assert len(rest.rows) == 1 and rest.cursor.cid == 0, rest


def the_rest(client, ft):
    info = ft.info()
    assert info["index_name"] == "hotels" and int(info["num_docs"]) == 3, info
    assert float(info["percent_indexed"]) == 1.0 and int(info["indexing"]) == 0, info
    assert ft.explain("@city:{rome}").startswith("TAG:@city {"), ft.explain("@city:{rome}")
    assert sorted(ft.tagvals("city")) == ["paris", "rome"]
    assert ft.aliasadd("inns") and client.ft("inns").search("*")
    refused("Alias already exists", lambda: ft.aliasadd("inns"))
    assert ft.aliasupdate("inns") and ft.aliasdel("inns")
    assert ft.alter_schema_add(NumericField("stars"))
    assert client.hset("hotel:0", "stars", 4) == 1
    assert ft.config_get("TIMEOUT")
    assert "hotels" in client.execute_command("FT._LIST")
    assert ft.dropindex(delete_documents=True)
    assert client.exists("hotel:0", "hotel:1", "hotel:2") == 0


def main():
    port = int(sys.argv[1])
    for protocol in (2, 3):
        client = redis.Redis(port=port, protocol=protocol, decode_responses=True)
        ft = of_hashes(client)
        searches(ft, protocol == 3)
        aggregates(ft, protocol == 3)
        the_rest(client, ft)
        client.close()
    print("content")


main()
