//! Measures the duration of a read that must be loaded, and the time until joins show a commit. To run it alone:
//! `LARDER_FIGURES=1 cargo test -p larder-server --test it postgres::figures -- --nocapture`.

use std::time::{Duration, Instant};

use super::cluster::{Cluster, Sql};
use super::{SCHEMA, TABLES, TIMELINE, server, with_cores};
use crate::resp::Client;

/// Number of authors with followers; as many others have none.
const AUTHORS: usize = 4000;
const FOLLOWERS: usize = 400;

/// Prints one line of results, in microseconds.
fn print_times(cores: u32, what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_micros();
    println!(
        r#"{{"threads":{cores},"what":"{what}","count":{},"us_p50":{},"us_p90":{},"us_p99":{},"us_max":{}}}"#,
        times.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0)
    );
}

fn timed(times: &mut Vec<Duration>, run: impl FnOnce()) {
    let began = Instant::now();
    run();
    times.push(began.elapsed());
}

fn measure_loads(cores: u32, client: &mut Client, sql: &mut Sql) {
    let (mut loaded, mut here, mut direct) = (Vec::new(), Vec::new(), Vec::new());
    for a in AUTHORS..2 * AUTHORS {
        let read = format!("RANGE post|a{a}| post|a{a}}}");
        timed(&mut loaded, || {
            assert!(client.call(&read).starts_with("*40|"))
        });
        timed(&mut here, || {
            assert!(client.call(&read).starts_with("*40|"))
        });
        let select = format!("SELECT author, time, body FROM posts WHERE author = 'a{a}'");
        timed(&mut direct, || assert_eq!(sql.rows(&select).len(), 20));
    }
    print_times(cores, "SELECT of 20 rows, from PostgreSQL itself", direct);
    print_times(cores, "RANGE of 20 rows that must be loaded", loaded);
    print_times(cores, "RANGE of 20 rows that are here", here);
    let mut timelines = Vec::new();
    for f in 1..FOLLOWERS {
        let read = format!("RANGE tline|f{f}| tline|f{f}}}");
        timed(&mut timelines, || {
            assert!(client.call(&read).starts_with("*400|"));
        });
    }
    let what = "RANGE of a timeline of 200 rows, of 10 authors who must be loaded";
    print_times(cores, what, timelines);
}

/// Measures from the moment at which the writer's commit returns.
fn measure_lags(cores: u32, client: &mut Client, sql: &mut Sql, what: &str) {
    let (mut shown, mut commits) = (Vec::new(), Vec::new());
    let first = 1000
        * (1 + sql
            .one("SELECT max(time) FROM posts")
            .parse::<u64>()
            .unwrap()
            / 1000);
    for time in first..first + 1000 {
        timed(&mut commits, || {
            sql.run(&format!("INSERT INTO posts VALUES ('a0', {time}, 'new')"));
        });
        let read = format!("GET tline|f0|{time:010}|a0");
        timed(&mut shown, || while client.call(&read) == "$-1" {});
    }
    print_times(
        cores,
        &format!("INSERT, until PostgreSQL has committed it{what}"),
        commits,
    );
    print_times(
        cores,
        &format!("from then until a timeline has the row{what}"),
        shown,
    );
}

fn measure(cores: u32) {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let mut sql = cluster.database("figures");
    sql.run(SCHEMA);
    sql.run(&format!(
        "INSERT INTO posts SELECT 'a' || a, t, repeat('x', 100) FROM generate_series(0, 2 * {AUTHORS} - 1) a, generate_series(1, 20) t;
        INSERT INTO subs SELECT 'f' || f, 'a' || (f * 7 + n * 397) % {AUTHORS} FROM generate_series(0, {FOLLOWERS} - 1) f, generate_series(0, 9) n;
        ANALYZE"
    ));
    let server = server(&sql.url(), TABLES);
    let mut client = Client::connect(&server);
    client.create("timeline", TIMELINE);
    client.check("GET post|nobody|0000000001", "$-1");
    measure_loads(cores, &mut client, &mut sql);
    client.check("RANGECOUNT tline|f0| tline|f0}", ":200");
    measure_lags(cores, &mut client, &mut sql, "");
    // With a concurrent client that commits without a pause.
    let mut other = sql.another();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut time = 1_000_000;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                time += 1;
                other.run(&format!("INSERT INTO posts VALUES ('a1', {time}, 'more')"));
            }
        });
        measure_lags(cores, &mut client, &mut sql, ", beside a busy writer");
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn load_times_and_commit_delays_are_measured() {
    if !larder_testing::is_enabled("LARDER_FIGURES", "the test needs an otherwise idle machine") {
        return;
    }
    for cores in [1, 2] {
        with_cores(
            cores,
            if cores == 1 {
                || measure(1)
            } else {
                || measure(2)
            },
        );
    }
}
