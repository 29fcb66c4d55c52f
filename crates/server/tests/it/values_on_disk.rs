//! Long values that are kept in a file: with more data than the memory limit of tables, results are the same.

use std::collections::BTreeMap;

use larder_types::ByteSize;

use crate::full_disk::SmallDisk;
use crate::resp::Client;
use crate::spaces::call;
use crate::support::TestServer;

const ROWS: u32 = 4000;
const VALUE: usize = 4096;
/// A quarter of the size of all values.
const MEMORY: u64 = 4 << 20;

fn server(threads: u32, values_on_disk: u64) -> TestServer {
    TestServer::with(|config| {
        config.server.threads = threads;
        config.tables.memory = ByteSize(MEMORY);
        config.tables.values_on_disk = ByteSize(values_on_disk);
    })
}

/// Returns a number from INFO.
fn info_number(client: &mut Client, name: &str) -> u64 {
    let info = call(client, &["INFO", "tables"]);
    let at = info
        .find(&format!("{name}:"))
        .expect("the number is reported");
    let rest = &info[at + name.len() + 1..];
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|it| it.parse().ok()).expect("a number")
}

fn value(n: u32, round: u32) -> String {
    let word = format!("{n}.{round} ");
    word.repeat(VALUE / word.len())
}

fn fill(client: &mut Client, round: u32) {
    for n in 0..ROWS {
        let (row, object) = (format!("page|{n:05}"), format!("page:{n:05}"));
        let answer = call(client, &["SET", &row, &value(n, round)]);
        assert_eq!(answer, "+OK", "row {n}");
        let kind = (n % 7).to_string();
        let text = value(n, round + 1);
        let answer = call(client, &["HSET", &object, "kind", &kind, "text", &text]);
        assert!(answer.starts_with(':'), "object {n}: {answer}");
    }
}

fn check(client: &mut Client, round: u32) {
    for n in (0..ROWS).step_by(7) {
        let expected = value(n, round);
        let answer = call(client, &["GET", &format!("page|{n:05}")]);
        assert_eq!(answer, format!("${}|{expected}", expected.len()));
        let expected = value(n, round + 1);
        let answer = call(client, &["HGET", &format!("page:{n:05}"), "text"]);
        assert_eq!(answer, format!("${}|{expected}", expected.len()));
    }
    let found = call(
        client,
        &["FT.SEARCH", "pages", "@kind:{0}", "RETURN", "1", "kind"],
    );
    let count = ROWS.div_ceil(7);
    assert!(found.contains(&format!(":{count}")), "{found}");
}

#[test]
fn data_of_eight_times_the_memory_is_written_read_searched_and_recovered() {
    for threads in [1, 2] {
        let mut server = server(threads, 256);
        let mut client = Client::connect(&server);
        let create = "FT.CREATE pages ON HASH PREFIX 1 page: SCHEMA kind TAG";
        client.check(create, "+OK");
        fill(&mut client, 1);
        check(&mut client, 1);
        // Rewrites all values. The space of the old ones is released and reused.
        fill(&mut client, 2);
        let in_use = info_number(&mut client, "tables_values_on_disk_bytes");
        let all = u64::from(ROWS) * 2 * VALUE as u64;
        assert!(in_use >= all * 9 / 10 && in_use < all * 13 / 10, "{in_use}");
        assert!(info_number(&mut client, "tables_memory_bytes") < MEMORY);
        assert_eq!(info_number(&mut client, "tables_values_disk_refused"), 0);
        check(&mut client, 2);
        server.restart(|_| {});
        let mut client = Client::connect(&server);
        check(&mut client, 2);
        for n in 0..ROWS {
            let (row, object) = (format!("page|{n:05}"), format!("page:{n:05}"));
            assert_eq!(call(&mut client, &["DEL", &row, &object]), ":2");
        }
        assert_eq!(info_number(&mut client, "tables_values_on_disk_bytes"), 0);
    }
}

#[test]
fn without_the_value_file_data_above_the_memory_limit_is_rejected() {
    let server = server(1, 0);
    let mut client = Client::connect(&server);
    let answers: BTreeMap<String, usize> = (0..ROWS).fold(BTreeMap::new(), |mut all, n| {
        let answer = call(&mut client, &["SET", &format!("page|{n:05}"), &value(n, 1)]);
        let kind = answer.split(' ').next().unwrap_or_default().to_owned();
        *all.entry(kind).or_default() += 1;
        all
    });
    assert!(answers["+OK"] > 500 && answers["-OOM"] > 500, "{answers:?}");
}

#[test]
fn values_stay_in_memory_if_the_disk_has_no_space_for_the_value_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(disk) = SmallDisk::mount(&folder.path().join("disk"), 32) else {
        return larder_testing::report_unsupported("mount a small file system (it takes root)");
    };
    let server = TestServer::with(|config| {
        config.server.data = disk.0.join("data");
        config.server.threads = 1;
        config.tables.values_on_disk = ByteSize(256);
    });
    let mut client = Client::connect(&server);
    for n in 0..100 {
        let answer = call(&mut client, &["SET", &format!("page|{n}"), &value(n, 1)]);
        assert_eq!(answer, "+OK");
    }
    assert_eq!(info_number(&mut client, "tables_values_disk_refused"), 100);
    assert_eq!(info_number(&mut client, "tables_values_on_disk_bytes"), 0);
    let expected = value(42, 1);
    let answer = call(&mut client, &["GET", "page|42"]);
    assert_eq!(answer, format!("${}|{expected}", expected.len()));
}
