//! The crate `redis` as a client, in both protocol versions.

use std::collections::HashMap;

use redis::{Commands, Value};

use crate::fixture::{RECORDS, build, pull_ok, value};
use crate::support::{Server, spawn_server, spawn_server_with};

fn connect(server: &Server, rest: &str) -> redis::RedisResult<redis::Connection> {
    redis::Client::open(format!(
        "redis://{rest}",
        rest = rest.replace("HOST", &server.resp)
    ))?
    .get_connection()
}

fn check_reads(mut redis: redis::Connection) {
    assert_eq!(redis.get::<_, String>("pymk:key7").unwrap(), value('a', 7));
    assert_eq!(redis.get::<_, Option<String>>("pymk:none").unwrap(), None);
    let keys: Vec<String> = (0..RECORDS + 2).map(|n| format!("pymk:key{n}")).collect();
    let values: Vec<Option<String>> = redis.mget(&keys).unwrap();
    for (number, found) in values.iter().enumerate() {
        let expected = (number < RECORDS as usize).then(|| value('a', number as u64));
        assert_eq!(*found, expected, "key{number}");
    }
    assert!(redis.exists::<_, bool>("pymk:key1").unwrap());
    assert_eq!(
        redis.strlen::<_, usize>("pymk:key20").unwrap(),
        value('a', 20).len()
    );
    assert_eq!(
        redis.getrange::<_, String>("pymk:key5", 0, 3).unwrap(),
        "a000"
    );

    let mut pipeline = redis::pipe();
    for number in 0..500 {
        pipeline
            .get(format!("pymk:key{number}"))
            .strlen("pymk:none");
    }
    let replies: Vec<Value> = pipeline.query(&mut redis).unwrap();
    for (number, pair) in replies.chunks(2).enumerate() {
        let expected = value('a', number as u64).into_bytes();
        assert_eq!(
            pair,
            [Value::BulkString(expected), Value::Int(0)],
            "{number}"
        );
    }

    let names: Vec<String> = redis.scan().unwrap().map(Result::unwrap).collect();
    assert_eq!(names.len(), RECORDS as usize);
    let info: HashMap<String, Value> = redis::cmd("STORE.INFO")
        .arg("pymk")
        .query(&mut redis)
        .unwrap();
    assert_eq!(info["records"], Value::Int(RECORDS as i64));
    let size: i64 = redis::cmd("DBSIZE").query(&mut redis).unwrap();
    assert_eq!(size, RECORDS as i64);

    // Errors keep their code, and the connection remains usable after each.
    let absent = redis::cmd("STORE.INFO")
        .arg("other")
        .query::<()>(&mut redis);
    let absent = absent.unwrap_err();
    assert_eq!(absent.code(), Some("NOSTORE"), "{absent}");
    let refused = redis.set::<_, _, ()>("pymk:key1", "x").unwrap_err();
    assert_eq!(refused.code(), Some("NOWRITE"), "{refused}");
    let unknown = redis::cmd("NOPE").query::<()>(&mut redis).unwrap_err();
    assert_eq!(unknown.code(), Some("ERR"), "{unknown}");
    let mixed: Result<Vec<String>, _> = redis::pipe()
        .get("pymk:key1")
        .cmd("STORE.VERSION")
        .arg("other")
        .get("pymk:key2")
        .query(&mut redis);
    let mixed = mixed.unwrap_err().to_string();
    assert!(mixed.contains("NOSTORE"), "{mixed}");
    assert_eq!(redis.get::<_, String>("pymk:key2").unwrap(), value('a', 2));
}

#[test]
fn the_redis_crate_reads_in_both_protocols() {
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server(&folder.path().join("data"));
    pull_ok(&server, &build('a', &folder.path().join("a")));
    check_reads(connect(&server, "HOST").unwrap());
    check_reads(connect(&server, "HOST/?protocol=resp3").unwrap());

    let mut redis = connect(&server, "HOST/?protocol=resp3").unwrap();
    let hello: HashMap<String, Value> = redis::cmd("HELLO").arg(3).query(&mut redis).unwrap();
    assert_eq!(hello["proto"], Value::Int(3));
    let info: Value = redis::cmd("STORE.INFO")
        .arg("pymk")
        .query(&mut redis)
        .unwrap();
    assert!(matches!(info, Value::Map(_)), "{info:?}");
    let nil: Value = redis.get("pymk:none").unwrap();
    assert_eq!(nil, Value::Nil);
    assert!(connect(&server, "HOST/1").is_err(), "there is one database");
}

#[test]
fn the_redis_crate_gives_the_password() {
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server_with(&folder.path().join("data"), |command| {
        command.env("LARDER_SERVER_PASSWORD", "open-sesame");
    });
    for protocol in ["resp2", "resp3"] {
        let url = format!(":open-sesame@HOST/?protocol={protocol}");
        let mut redis = connect(&server, &url).unwrap();
        let pong: String = redis::cmd("PING").query(&mut redis).unwrap();
        assert_eq!(pong, "PONG");
        let wrong = connect(&server, &format!(":close@HOST/?protocol={protocol}"));
        let wrong = wrong.err().expect("refused");
        // The crate has an error kind for a rejected AUTH, but not for a rejected HELLO.
        let output = wrong.kind() == redis::ErrorKind::AuthenticationFailed
            || wrong.code() == Some("WRONGPASS");
        assert!(output, "{wrong}");
    }
}
