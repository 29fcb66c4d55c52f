//! Objects in a cluster: any node answers for any of them. That they outlive their owner and move with their slots, `rows` has.

use super::forward::{clients, forwarded};
use super::harness::Cluster;
use crate::resp::request;

#[test]
fn any_node_answers_for_any_object() {
    for threads in ["1", "2"] {
        let Some(cluster) = Cluster::start(3, &[("server.threads", threads)]) else {
            return;
        };
        let mut at = clients(&cluster);
        for number in 0..30 {
            let line = format!("HSET h|{number:02}|x n {number} f v");
            at[number % 3].check(&line, ":2");
            let line = format!("JSON.SET d|{number:02} $ {{\"n\":{number}}}");
            at[number % 3].check(&line, "+OK");
        }
        for number in 0..30 {
            let value = number.to_string();
            let value = format!("${}|{value}", value.len());
            for client in &mut at {
                client.check(&format!("HGET h|{number:02}|x n"), &value);
                client.check(&format!("JSON.GET d|{number:02} .n"), &value);
                client.check(&format!("TYPE h|{number:02}|x"), "+hash");
            }
        }
        assert!(forwarded(&cluster, "hget") >= 30, "most keys are elsewhere");
        for client in &mut at {
            client.check(
                "JSON.MGET d|00 d|01 d|none d|02 h|01|x d|03 d|00 $.n",
                "*7|$3|[0]|$3|[1]|$-1|$3|[2]|$-1|$3|[3]|$3|[0]",
            );
            client.check("EXISTS h|00|x h|01|x d|02 h|none|x h|03|x", ":4");
            client.check("DBSIZE", ":60");
            client.check("RANGECOUNT h| h}", ":0");
            let keys = client.ask("KEYS h|*");
            assert!(keys.starts_with("*30|$6|h|00|x|$6|h|01|x|"), "{keys}");
            let scanned = client.ask("SCAN 0 MATCH h|* COUNT 100 TYPE hash");
            assert!(scanned.starts_with("*2|$1|0|*30|$6|h|00|x|"), "{scanned}");
            let scanned = client.ask("SCAN 0 MATCH h|* COUNT 100 TYPE string");
            assert_eq!(scanned, "*2|$1|0|*0");
            client.check("HSET a|{u}|1 f v", ":1");
            client.check("RENAME a|{u}|1 c|{u}|1", "+OK");
            client.check("COPY c|{u}|1 b|{u}|1", ":1");
            client.check("HGETALL b|{u}|1", "*2|$1|f|$1|v");
            client.check("SET b|{u}|1 text", "+OK");
            client.check("GET b|{u}|1", "$4|text");
            client.check("HEXPIRE c|{u}|1 100 FIELDS 1 f", "*1|:1");
            client.check("MULTI", "+OK");
            client.check("HINCRBY c|{u}|1 n 1", "+QUEUED");
            client.check("OBJ.CHANGE c|{u}|1 DO ADD n 5", "+QUEUED");
            client.check("HGET c|{u}|1 n", "+QUEUED");
            client.check("EXEC", "*3|:1|:1|$1|6");
            client.check("DEL c|{u}|1 b|{u}|1", ":2");
            client.send(&request(&["GET", "\0h|00|x"]));
            assert_eq!(client.reply(), "-ERR a key does not begin with a zero byte");
        }
        // A field whose time has come is seen at no node.
        at[0].check("HSET h|e f v g w", ":2");
        at[1].check("HPEXPIRE h|e 1 FIELDS 1 f", "*1|:1");
        while at[2].ask("HGETALL h|e") != "*2|$1|g|$1|w" {}
        at[1].check("DEL h|e", ":1");
        at[2].check("FLUSHALL", "+OK");
        at[0].check("DBSIZE", ":0");
    }
}
