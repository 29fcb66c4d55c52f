import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.json.JSONObject;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.json.Path2;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.search.Document;
import redis.clients.jedis.search.FTCreateParams;
import redis.clients.jedis.search.FTSearchParams;
import redis.clients.jedis.search.IndexDataType;
import redis.clients.jedis.search.IndexDefinition;
import redis.clients.jedis.search.IndexOptions;
import redis.clients.jedis.search.Query;
import redis.clients.jedis.search.Schema;
import redis.clients.jedis.search.SearchResult;
import redis.clients.jedis.search.aggr.AggregationBuilder;
import redis.clients.jedis.search.aggr.AggregationResult;
import redis.clients.jedis.search.aggr.Reducers;
import redis.clients.jedis.search.aggr.SortedField;
import redis.clients.jedis.args.SortingOrder;
import redis.clients.jedis.search.schemafields.NumericField;
import redis.clients.jedis.search.schemafields.TagField;
import redis.clients.jedis.search.schemafields.TextField;

/** What jedis's search commands ask of a server and expect of it: java -cp JARS Search.java PORT. It says "content" at its end. */
public class Search {
    static void same(Object seen, Object expected) {
        if (!expected.equals(seen)) {
            throw new AssertionError(seen + " is not " + expected);
        }
    }

    static void refused(String text, Runnable call) {
        try {
            call.run();
        } catch (JedisDataException refusal) {
            if (refusal.getMessage().contains(text)) {
                return;
            }
            throw refusal;
        }
        throw new AssertionError("not refused: " + text);
    }

    static List<String> ids(SearchResult found) {
        return found.getDocuments().stream().map(Document::getId).sorted().collect(Collectors.toList());
    }

    static void work(JedisPooled client) {
        // Spaces are declared with the older helpers and with the newer ones.
        Schema schema = new Schema().addSortableTagField("city", ",").addSortableNumericField("price").addTextField("name", 1.0).addGeoField("place");
        IndexDefinition definition = new IndexDefinition(IndexDefinition.Type.HASH).setPrefixes("hotel:");
        same(client.ftCreate("hotels", IndexOptions.defaultOptions().setDefinition(definition), schema), "OK");
        refused("Index already exists", () -> client.ftCreate("hotels", IndexOptions.defaultOptions(), schema));
        client.hset("hotel:0", Map.of("city", "Rome", "price", "120", "name", "Albergo Aurora", "place", "12.49,41.89"));
        client.hset("hotel:1", Map.of("city", "Rome", "price", "80", "name", "Bella Vista", "place", "12.51,41.90"));
        client.hset("hotel:2", Map.of("city", "Paris", "price", "200", "name", "Aurora", "place", "2.35,48.85"));

        SearchResult found = client.ftSearch("hotels", new Query("@city:{rome}").setSortBy("price", true).returnFields("name"));
        same(found.getTotalResults(), 2L);
        same(found.getDocuments().get(0).getId(), "hotel:1");
        same(found.getDocuments().get(0).getString("name"), "Bella Vista");
        same(ids(client.ftSearch("hotels", new Query("aurora").setNoContent())), List.of("hotel:0", "hotel:2"));
        same(ids(client.ftSearch("hotels", new Query("*").addFilter(new Query.NumericFilter("price", 100, 150)).limit(0, 5))), List.of("hotel:0"));
        same(ids(client.ftSearch("hotels", new Query("*").addFilter(new Query.GeoFilter("place", 12.5, 41.9, 5, "km")))), List.of("hotel:0", "hotel:1"));
        FTSearchParams params = FTSearchParams.searchParams().addParam("low", 150).sortBy("price", SortingOrder.DESC).limit(0, 1).dialect(2);
        same(ids(client.ftSearch("hotels", "@price:[$low inf]", params)), List.of("hotel:2"));
        refused("Syntax error", () -> client.ftSearch("hotels", "@price:[1"));

        AggregationResult rows = client.ftAggregate("hotels", new AggregationBuilder("*")
            .groupBy("@city", Reducers.count().as("n"), Reducers.avg("@price").as("mean"))
            .apply("@mean * 2", "twice").filter("@n > 1").sortBy(1, SortedField.desc("@n")));
        same(rows.getResults().size(), 1);
        same(rows.getRow(0).getString("city"), "Rome");
        same(rows.getRow(0).getDouble("twice"), 200.0);
        AggregationResult part = client.ftAggregate("hotels", new AggregationBuilder("*").load("@__key").cursor(2, 10000));
        same(part.getResults().size(), 2);
        AggregationResult rest = client.ftCursorRead("hotels", part.getCursorId(), 2);
        same(rest.getResults().size(), 1);
        same(rest.getCursorId(), 0L);

        Map<String, Object> info = client.ftInfo("hotels");
        same(info.get("index_name"), "hotels");
        same(String.valueOf(info.get("num_docs")), "3");
        same(client.ftExplain("hotels", new Query("@city:{rome}")).startsWith("TAG:@city {"), true);
        same(client.ftTagVals("hotels", "city"), java.util.Set.of("paris", "rome"));
        same(client.ftList(), java.util.Set.of("hotels"));
        same(client.ftAlter("hotels", NumericField.of("stars"), TextField.of("note")), "OK");
        same(client.ftAliasAdd("inns", "hotels"), "OK");
        same(client.ftSearch("inns", "*").getTotalResults(), 3L);
        same(client.ftAliasUpdate("inns", "hotels"), "OK");
        same(client.ftAliasDel("inns"), "OK");
        same(client.ftConfigGet("TIMEOUT").containsKey("TIMEOUT"), true);
        same(client.ftDropIndexDD("hotels"), "OK");
        same(client.exists("hotel:0", "hotel:1", "hotel:2"), 0L);

        same(client.ftCreate("docs", FTCreateParams.createParams().on(IndexDataType.JSON).prefix("doc"),
            TextField.of("$.name").as("name"), TagField.of("$.tags[*]").as("tags"), NumericField.of("$.stock.rome").as("stock").sortable()), "OK");
        same(client.jsonSet("doc1", Path2.ROOT_PATH, new JSONObject("{\"name\":\"Il Sole\",\"tags\":[\"new\",\"red\"],\"stock\":{\"rome\":5}}")), "OK");
        same(ids(client.ftSearch("docs", "@tags:{red} @stock:[5 5]")), List.of("doc1"));
        same(client.jsonGet("doc1", Path2.of("$.stock.rome")).toString(), "[5]");
        same(client.ftDropIndexDD("docs"), "OK");
        same(client.exists("doc1"), false);
    }

    public static void main(String[] args) {
        for (RedisProtocol protocol : new RedisProtocol[] {RedisProtocol.RESP2, RedisProtocol.RESP3}) {
            HostAndPort address = new HostAndPort("127.0.0.1", Integer.parseInt(args[0]));
            try (JedisPooled client = new JedisPooled(address, DefaultJedisClientConfig.builder().protocol(protocol).build())) {
                work(client);
            }
        }
        System.out.println("content");
    }
}
