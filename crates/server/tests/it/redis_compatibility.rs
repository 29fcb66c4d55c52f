//! Commands that larder has in common with Redis, with the results that Redis's own tests expect, on one serving
//! thread and on several.

use larder_protocol::config::Fsync;

use crate::resp::{Client, TIMELINE, request, server_with};
use crate::support::TestServer;

/// Starts servers with the store `s` (see `server_with`), with one thread and with two.
pub fn servers() -> [TestServer; 2] {
    [1, 2].map(|threads| server_with(|config| config.server.threads = threads))
}

#[track_caller]
pub fn check_all(client: &mut Client, lines: &[(&str, &str)]) {
    for (line, expected) in lines {
        client.check(line, expected);
    }
}

/// Client libraries repeat a command whose error looks like that of a read-only replica. An unknown command must
/// therefore return another error.
#[test]
fn an_unsupported_command_is_unknown_for_keys_of_any_kind() {
    for server in servers() {
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[
                (
                    "NOSUCH a b",
                    "-ERR unknown command 'NOSUCH', with args beginning with: 'a' 'b' ",
                ),
                (
                    "NOSUCH",
                    "-ERR unknown command 'NOSUCH', with args beginning with: ",
                ),
                (
                    "xgroup",
                    "-ERR unknown command 'xgroup': streams are not supported: store rows under increasing keys, read them with RANGE, and SUBSCRIBE to their keys",
                ),
                (
                    "SORT t|a",
                    "-ERR unknown command 'SORT', with args beginning with: 't|a' ",
                ),
                (
                    "FT.SUGADD names hello 1",
                    "-ERR unknown command 'FT.SUGADD': suggestions are not supported: search for a prefix (hel*), or count words with a join",
                ),
                (
                    "ft.synupdate hotels 1 inn",
                    "-ERR unknown command 'ft.synupdate': synonyms are not supported: search for alternatives (one | other)",
                ),
                (
                    "FT.DICTADD words hello",
                    "-ERR unknown command 'FT.DICTADD': dictionaries are not supported: search for words, prefixes (hel*) or parts (*ell*)",
                ),
                (
                    "FT.SPELLCHECK hotels helo",
                    "-ERR unknown command 'FT.SPELLCHECK': spelling correction is not supported: search for a prefix (hel*) or a part (*ell*)",
                ),
                (
                    "FT.HYBRID hotels",
                    "-ERR unknown command 'FT.HYBRID': vectors are not supported: search by attributes",
                ),
            ],
        );
        // The same applies to known commands on keys that reject them.
        client.create("timeline", TIMELINE);
        for line in [
            "SET s:k1 x",
            "HSET s:k1 a b",
            "DEL s:k1",
            "SET tline|a|1|b x",
            "INCR s:k1",
        ] {
            let reply = client.call(line);
            assert!(reply.starts_with("-NOWRITE "), "{line}: {reply}");
        }
    }
}

#[test]
fn reset_and_quit_end_a_transaction() {
    for server in servers() {
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[
                ("MULTI", "+OK"),
                ("SET t|a 1", "+QUEUED"),
                ("RESET", "+RESET"),
                ("EXEC", "-ERR EXEC without MULTI"),
                ("DISCARD", "-ERR DISCARD without MULTI"),
                ("GET t|a", "$-1"),
                ("MULTI", "+OK"),
                ("SET t|a 1", "+QUEUED"),
                ("QUIT", "+OK"),
            ],
        );
        assert_eq!(client.read_to_end(), "");
        Client::connect(&server).check("GET t|a", "$-1");
    }
}

#[test]
fn a_nested_multi_is_rejected_and_the_transaction_continues() {
    for server in servers() {
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[
                ("MULTI", "+OK"),
                ("SET t|a 1", "+QUEUED"),
                ("MULTI", "-ERR MULTI calls can not be nested"),
                ("SET t|b 2", "+QUEUED"),
                ("EXEC", "*2|+OK|+OK"),
                ("MULTI", "+OK"),
                (
                    "CLIENT NOSUCH",
                    "-ERR unknown subcommand 'NOSUCH'. Try CLIENT HELP.",
                ),
                (
                    "EXEC",
                    "-EXECABORT Transaction discarded because of previous errors.",
                ),
                ("MULTI", "+OK"),
                (
                    "EXEC now",
                    "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command",
                ),
                ("EXEC", "-ERR EXEC without MULTI"),
                ("MULTI", "+OK"),
                ("GET", "-ERR wrong number of arguments for 'get' command"),
                (
                    "EXEC",
                    "-EXECABORT Transaction discarded because of previous errors.",
                ),
            ],
        );
    }
}

#[test]
fn commands_on_the_connection_and_the_server_are_queued_until_exec() {
    for server in servers() {
        let mut client = Client::connect(&server);
        client.check("MULTI", "+OK");
        for line in [
            "TIME",
            "INFO server",
            "CLIENT SETNAME me",
            "CLIENT GETNAME",
            "CONFIG GET maxmemory",
            "COMMAND COUNT",
            "SELECT 0",
            "SELECT 1",
            "PING",
            "ECHO hi",
            "SET t|a 1",
            "SET t|b 1",
            "DBSIZE",
            "STORE.VERSION s",
            "SLOWLOG HELP",
            "HELLO 3",
            "GET t|none",
        ] {
            client.check(line, "+QUEUED");
        }
        client.check("CLIENT GETNAME", "+QUEUED");
        let all = client.call("EXEC");
        let part = |text: &str| assert!(all.contains(text), "{text} in {all}");
        assert!(all.starts_with("*18|*2|$10|1"), "{all}");
        part("|# Server");
        part("|+OK|$2|me|*2|$9|maxmemory|$1|0|:");
        part("|+OK|-ERR DB index is out of range|+PONG|$2|hi|+OK|+OK|:102|:1|*5|+SLOWLOG <sub");
        part("|%7|$6|server|$5|redis");
        assert!(all.ends_with("|_|$2|me"), "{all}");
        client.check("GET t|none", "_");
    }
}

/// By default, the pipelines of client libraries are transactions.
#[test]
fn a_transaction_reads_stores_and_tables() {
    for server in servers() {
        let mut client = Client::connect(&server);
        client.check("MULTI", "+OK");
        for line in [
            "GET s:k1",
            "SET t|a 1",
            "MGET s:k1 s:none s:k2",
            "EXISTS s:k1",
            "GET t|a",
            "SET u|b 2",
            "STRLEN s:k1",
            "SCAN 0 MATCH s:k77",
        ] {
            client.check(line, "+QUEUED");
        }
        let all = client.call("EXEC");
        let expected = "*8|$1|v|+OK|*3|$1|v|$-1|$1|v|:1|$1|1|+OK|:1|*2|";
        assert!(all.starts_with(expected), "{all}");
        // Transactions with a single read, and with only rejected commands.
        check_all(
            &mut client,
            &[
                ("MULTI", "+OK"),
                ("GET s:k5", "+QUEUED"),
                ("EXEC", "*1|$1|v"),
                ("MULTI", "+OK"),
                (
                    "SET s:k5 x",
                    "-NOWRITE stores are read-only, SET is refused; build a version and push it: larder push FILE --store s",
                ),
                (
                    "EXEC",
                    "-EXECABORT Transaction discarded because of previous errors.",
                ),
            ],
        );
    }
}

#[test]
fn flushall_removes_rows_and_keeps_stores_and_joins() {
    for threads in [1, 2] {
        let mut server = server_with(|config| {
            config.server.threads = threads;
            config.tables.fsync = Fsync::Always;
        });
        let mut client = Client::connect(&server);
        client.create("timeline", TIMELINE);
        let mut many = Vec::new();
        for row in 0..5000 {
            many.extend(request(&["SET", &format!("t|{row:05}"), "v"]));
        }
        client.send(&many);
        (0..5000).for_each(|_| assert_eq!(client.reply(), "+OK"));
        check_all(
            &mut client,
            &[
                ("MSET sub|ann|bob 1 post|bob|0000000100 hello", "+OK"),
                ("RANGECOUNT tline| tline}", ":1"),
                ("FLUSHALL NOW", "-ERR syntax error"),
                ("FLUSHALL ASYNC SYNC", "-ERR syntax error"),
                ("DBSIZE", ":5102"),
                ("FLUSHALL", "+OK"),
                ("DBSIZE", ":100"),
                ("RANGECOUNT tline| tline}", ":0"),
                ("GET s:k1", "$1|v"),
                ("MSET sub|ann|bob 1 post|bob|0000000100 hello", "+OK"),
                ("RANGECOUNT tline| tline}", ":1"),
                ("MULTI", "+OK"),
                ("SET t|a 1", "+QUEUED"),
                ("FLUSHDB ASYNC", "+QUEUED"),
                ("SET t|b 1", "+QUEUED"),
                ("EXEC", "*3|+OK|+OK|+OK"),
                ("DBSIZE", ":101"),
            ],
        );
        drop(client);
        server.restart(|_| {});
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[
                ("DBSIZE", ":101"),
                ("GET t|b", "$1|1"),
                ("RANGECOUNT tline| tline}", ":0"),
                ("FLUSHDB SYNC", "+OK"),
                ("DBSIZE", ":100"),
            ],
        );
        assert!(client.call("JOIN.LIST").contains("timeline"));
    }
}

/// Rows are removed in steps. The removal does not wait for rows that are written behind its position, and must not
/// count them in place of existing rows.
#[test]
fn a_long_removal_removes_all_existing_rows_and_ends_during_concurrent_writes() {
    let server = TestServer::start();
    let mut client = Client::connect(&server);
    let mut many = Vec::new();
    for row in 0..20_000 {
        many.extend(request(&["SET", &format!("t|x{row:05}"), "v"]));
    }
    client.send(&many);
    (0..20_000).for_each(|_| assert_eq!(client.reply(), "+OK"));
    let mut other = Client::connect(&server);
    for line in ["RANGEDEL t| t}", "FLUSHALL"] {
        client.send(&request(&line.split(' ').collect::<Vec<_>>()));
        // These rows are written in front of all others during the removal.
        for row in 0..200 {
            other.check(&format!("SET t|a{row:03} v"), "+OK");
        }
        client.reply();
        other.check("RANGECOUNT t|x t|y", ":0");
        let left = other.call("RANGECOUNT t|a t|b");
        other.check("RANGEDEL t|a t|b", &left);
    }
}

#[test]
fn expire_has_the_options_and_errors_of_redis() {
    for server in servers() {
        let mut client = Client::connect(&server);
        check_all(
            &mut client,
            &[
                ("SET t|a 1", "+OK"),
                (
                    "EXPIRE t|a 10 NX GT",
                    "-ERR NX and XX, GT or LT options at the same time are not compatible",
                ),
                (
                    "EXPIRE t|a 10 GT LT",
                    "-ERR GT and LT options at the same time are not compatible",
                ),
                ("EXPIRE t|a 10 AB", "-ERR Unsupported option AB"),
                ("EXPIRE t|a ten AB", "-ERR Unsupported option AB"),
                (
                    "EXPIRE t|a ten",
                    "-ERR value is not an integer or out of range",
                ),
                ("EXPIRE t|a 10 XX GT", ":0"),
                ("EXPIRE t|a 10 GT", ":0"),
                ("EXPIRE t|a 100 LT", ":1"),
                ("EXPIRE t|a 200 XX LT", ":0"),
                ("EXPIRE t|a 200 XX GT", ":1"),
                ("TTL t|a", ":200"),
                ("EXPIRE t|a 300 NX", ":0"),
                (
                    "EXPIRE t|a 9223372036854775807",
                    "-ERR invalid expire time in 'expire' command",
                ),
                (
                    "EXPIRE t|a -9223372036854776",
                    "-ERR invalid expire time in 'expire' command",
                ),
                (
                    "PEXPIRE t|a 9223372036854770000",
                    "-ERR invalid expire time in 'pexpire' command",
                ),
                ("EXPIRE t|a -9999 LT", ":1"),
                ("EXISTS t|a", ":0"),
                ("EXPIRE t|a 10", ":0"),
            ],
        );
    }
}

#[test]
fn increments_reject_the_same_values_as_redis() {
    let server = TestServer::start();
    let mut client = Client::connect(&server);
    let not = "-ERR value is not an integer or out of range";
    for value in [
        "010",
        "+1",
        "-0",
        " 1",
        "1 ",
        "",
        "1.0",
        "99999999999999999999",
    ] {
        client.send(&request(&["SET", "t|n", value]));
        assert_eq!(client.reply(), "+OK");
        client.check("INCR t|n", not);
        client.send(&request(&["INCRBY", "t|m", value]));
        assert_eq!(client.reply(), not, "{value:?}");
    }
    check_all(
        &mut client,
        &[
            ("SET t|n 9223372036854775807", "+OK"),
            ("INCR t|n", "-ERR increment or decrement would overflow"),
            (
                "DECRBY t|n -1",
                "-ERR increment or decrement would overflow",
            ),
            (
                "DECRBY t|n -9223372036854775808",
                "-ERR decrement would overflow",
            ),
            ("GET t|n", "$19|9223372036854775807"),
            ("SET t|n -17", "+OK"),
            ("INCRBY t|n 17", ":0"),
        ],
    );
}

#[test]
fn a_connection_can_kill_others_and_itself() {
    let server = TestServer::start();
    let (mut client, mut other) = (Client::connect(&server), Client::connect(&server));
    let id = |client: &mut Client| client.call("CLIENT ID")[1..].to_owned();
    let (own, others) = (id(&mut client), id(&mut other));
    client.check(&format!("CLIENT KILL ID {own}"), ":0");
    client.check(
        "CLIENT KILL ID 0",
        "-ERR client-id should be greater than 0",
    );
    client.check("CLIENT KILL TYPE foo", "-ERR Unknown client type 'foo'");
    client.check("CLIENT KILL USER nobody", "-ERR No such user 'nobody'");
    client.check("CLIENT KILL TYPE replica", ":0");
    client.check("CLIENT KILL 1.2.3.4:5", "-ERR No such client");
    client.check("CLIENT LIST TYPE replica", "$0|");
    client.check("CLIENT LIST TYPE foo", "-ERR Unknown client type 'foo'");
    assert!(client.call("CLIENT LIST TYPE normal").contains("id="));
    client.check(&format!("CLIENT KILL ID {others}"), ":1");
    assert_eq!(other.read_to_end(), "");
    client.check(&format!("CLIENT KILL ID {own} SKIPME no"), ":1");
    assert_eq!(client.read_to_end(), "");
    let mut client = Client::connect(&server);
    let addr = client.stream.get_ref().local_addr().expect("bound");
    client.check(&format!("CLIENT KILL {addr}"), "+OK");
    assert_eq!(client.read_to_end(), "");
    // MAXAGE selects connections of at least this age; these are younger.
    let (mut client, _other) = (Client::connect(&server), Client::connect(&server));
    client.check("CLIENT KILL MAXAGE 1000000", ":0");
    client.check(
        "CLIENT KILL MAXAGE 0",
        "-ERR maxage should be greater than 0",
    );
}

#[test]
fn info_keyspace_counts_expiring_keys() {
    for server in servers() {
        let mut client = Client::connect(&server);
        let mut keyspace = || {
            let info = client.call("INFO keyspace");
            let line = info.lines().find(|line| line.starts_with("db0:"));
            line.expect("a line").to_owned()
        };
        assert_eq!(keyspace(), "db0:keys=100,expires=0,avg_ttl=0");
        let mut writer = Client::connect(&server);
        check_all(
            &mut writer,
            &[
                ("SET t|a 1 EX 1000", "+OK"),
                ("SET plain 1 EX 3000", "+OK"),
                ("HSET h f v", ":1"),
                ("EXPIRE h 2000", ":1"),
                ("SET t|b 1", "+OK"),
            ],
        );
        let line = keyspace();
        let ttl = line.strip_prefix("db0:keys=104,expires=3,avg_ttl=");
        let ttl: u64 = ttl.expect(&line).parse().expect("a number");
        assert!((1_900_000..=2_000_000).contains(&ttl), "{line}");
        check_all(&mut writer, &[("PERSIST t|a", ":1"), ("DEL plain h", ":2")]);
        assert_eq!(keyspace(), "db0:keys=102,expires=0,avg_ttl=0");
    }
}

/// Converts a reply to TIME.
fn milliseconds(time: &str) -> u64 {
    let numbers: Vec<u64> = time
        .split('|')
        .filter_map(|part| part.parse().ok())
        .collect();
    numbers[0] * 1000 + numbers[1] / 1000
}

#[test]
fn a_key_that_had_expired_before_watch_does_not_abort_exec() {
    for server in servers() {
        let (mut client, mut other) = (Client::connect(&server), Client::connect(&server));
        for key in ["t|a", "plain"] {
            client.check(&format!("SET {key} 1 PX 1"), "+OK");
            // The server's clock determines the expiry.
            let begun = other.call("TIME");
            let is_later = |now: &str| milliseconds(now) > milliseconds(&begun) + 2;
            while !is_later(&other.call("TIME")) {}
            client.check(&format!("WATCH {key}"), "+OK");
            other.check(&format!("EXISTS {key}"), ":0");
            check_all(
                &mut client,
                &[("MULTI", "+OK"), ("PING", "+QUEUED"), ("EXEC", "*1|+PONG")],
            );
        }
    }
}

#[test]
fn resetstat_resets_info_but_not_the_metrics() {
    let server = TestServer::start();
    let mut client = Client::connect(&server);
    client.check(
        "NOSUCH",
        "-ERR unknown command 'NOSUCH', with args beginning with: ",
    );
    assert!(
        client
            .call("INFO errorstats")
            .contains("errorstat_ERR:count=1")
    );
    client.check("CONFIG RESETSTAT", "+OK");
    assert!(!client.call("INFO errorstats").contains("errorstat_ERR"));
    let stats = client.call("INFO stats");
    assert!(stats.contains("total_error_replies:0\r\n"), "{stats}");
    client.check(
        "NOSUCH",
        "-ERR unknown command 'NOSUCH', with args beginning with: ",
    );
    assert!(
        client
            .call("INFO errorstats")
            .contains("errorstat_ERR:count=1")
    );
}

#[test]
fn reset_keeps_the_library_name_and_version() {
    let server = TestServer::start();
    let mut client = Client::connect(&server);
    client.check("CLIENT SETINFO LIB-NAME stock", "+OK");
    client.check("CLIENT SETNAME me", "+OK");
    client.check("RESET", "+RESET");
    let line = client.call("CLIENT INFO");
    assert!(
        line.contains(" name= ") && line.contains("lib-name=stock"),
        "{line}"
    );
}

#[test]
fn info_counts_errors_by_code_and_reports_processor_time() {
    let server = server_with(|_| {});
    let mut client = Client::connect(&server);
    for line in ["NOSUCH", "GET", "SET s:k1 v", "STORE.INFO none"] {
        assert!(client.call(line).starts_with('-'));
    }
    let errors = client.call("INFO errorstats");
    for line in [
        "errorstat_ERR:count=2",
        "errorstat_NOWRITE:count=1",
        "errorstat_NOSTORE:count=1",
    ] {
        assert!(errors.contains(line), "{errors}");
    }
    let cpu = client.call("INFO cpu");
    let user = cpu.split("used_cpu_user:").nth(1).expect("a figure");
    let user: f64 = user
        .lines()
        .next()
        .and_then(|u| u.parse().ok())
        .expect("seconds");
    assert!(
        user >= 0.0 && cpu.contains("used_cpu_sys_children:"),
        "{cpu}"
    );
}
