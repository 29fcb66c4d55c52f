import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import redis.clients.jedis.ClusterPipeline;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisCluster;
import redis.clients.jedis.Response;

/** A stock client of Redis Cluster: java -cp JARS Cluster.java HOST:PORT. For each line that it reads it works, and says that it is content. */
public class Cluster {
    static void check(Object seen, Object expected) {
        if (!expected.equals(seen)) {
            throw new AssertionError(seen + " is not " + expected);
        }
    }

    static void work(JedisCluster client) {
        Map<String, String> rows = new LinkedHashMap<>();
        for (int user = 0; user < 60; user++) {
            for (int post = 0; post < 3; post++) {
                rows.put("jpost|{u" + user + "}|" + post, user + "." + post);
            }
        }
        rows.forEach((key, value) -> check(client.set(key, value), "OK"));
        rows.forEach((key, value) -> check(client.get(key), value));
        check(client.mget("jpost|{u1}|0", "jpost|{u1}|1"), List.of("1.0", "1.1"));
        Map<String, Response<String>> answers = new LinkedHashMap<>();
        try (ClusterPipeline pipeline = client.pipelined()) {
            rows.keySet().forEach(key -> answers.put(key, pipeline.get(key)));
            pipeline.sync();
        }
        rows.forEach((key, value) -> check(answers.get(key).get(), value));
        rows.keySet().forEach(key -> check(client.del(key), 1L));
    }

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        try (JedisCluster client = new JedisCluster(HostAndPort.from(args[0]))) {
            while (lines.readLine() != null) {
                work(client);
                System.out.println("content");
            }
        }
    }
}
