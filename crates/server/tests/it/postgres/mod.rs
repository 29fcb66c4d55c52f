//! Tables stored in a real PostgreSQL, which the tests start: see `cluster`.

/// Runs each of a module's tests on a server with one serving thread, and on one with several.
macro_rules! on_one_and_on_several_cores {
    ($($name:ident,)*) => {
        mod on_one_core {
            $(#[test] fn $name() { crate::postgres::with_cores(1, super::$name); })*
        }
        mod on_several_cores {
            $(#[test] fn $name() { crate::postgres::with_cores(3, super::$name); })*
        }
    };
}

mod arrays;
mod cluster;
mod cores;
mod faults;
mod figures;
mod loading;
mod nodes;
mod outages;
mod proxy;
mod publication;
mod random;
mod setup;
mod tls;
mod transactions;
mod writing;

use std::cell::Cell;
use std::time::{Duration, Instant};

use larder_protocol::config::ServerConfig;

use self::cluster::{Cluster, Sql};
use crate::resp::Client;
use crate::support::TestServer;

/// The tables of posts and subscriptions.
const SCHEMA: &str =
    "CREATE TABLE posts (author text, time bigint, body text, PRIMARY KEY (author, time));
    CREATE TABLE subs (follower text, author text, PRIMARY KEY (follower, author));
    CREATE PUBLICATION larder FOR TABLE posts, subs;";

const TABLES: &str = "
[tables.post]
pattern = 'post|<author>|<time:10>'
table = 'posts'
value = 'body'
[tables.sub]
pattern = 'sub|<follower>|<author>'
table = 'subs'
";

/// The same mapping, with posts written through.
const POSTS_WRITE_THROUGH: &str = "
[tables.post]
pattern = 'post|<author>|<time:10>'
table = 'posts'
value = 'body'
write = 'through'
[tables.sub]
pattern = 'sub|<follower>|<author>'
table = 'subs'
";

thread_local! {
    /// Number of serving threads of the servers that this test starts.
    static CORES: Cell<u32> = const { Cell::new(1) };
}

fn with_cores(cores: u32, test: fn()) {
    CORES.set(cores);
    test();
}

/// Returns a name for an object that all databases share. The same test runs concurrently with another number of
/// cores.
fn unique_name(name: &str) -> String {
    match CORES.get() {
        1 => name.to_owned(),
        cores => format!("{name}_on_{cores}"),
    }
}

/// Starts a server whose tables are in a database.
fn server(url: &str, tables: &str) -> TestServer {
    server_with(url, tables, |_| {})
}

fn server_with(url: &str, tables: &str, change: impl FnOnce(&mut ServerConfig)) -> TestServer {
    TestServer::with(|config| {
        config.server.threads = CORES.get();
        config.postgres.url = url.to_owned();
        config.apply_toml(tables, "the test").expect("right");
        change(config);
    })
}

/// A join over the tables in [`TABLES`].
const TIMELINE: &str =
    "tline|<user>|<time:10>|<author> = check sub|<user>|<author> copy post|<author>|<time>";

/// Starts a server with a new database with [`SCHEMA`] and [`TABLES`]. Returns `None` without PostgreSQL.
fn posts(name: &str) -> Option<(Sql, TestServer)> {
    let cluster = Cluster::shared()?;
    let mut sql = cluster.database(name);
    sql.run(SCHEMA);
    let server = server(&sql.url(), TABLES);
    Some((sql, server))
}

impl Client {
    /// Returns a line of `INFO postgres`.
    fn postgres_info(&mut self, name: &str) -> String {
        self.info("postgres", &format!("postgres_{name}"))
    }

    fn count(&mut self, name: &str) -> u64 {
        self.postgres_info(name).parse().expect("a count")
    }

    /// Waits until larder has applied everything that PostgreSQL has committed so far.
    fn catch_up(&mut self, sql: &mut Sql) {
        let lsn = sql.one("SELECT pg_current_wal_flush_lsn()");
        let lsn = position(&lsn);
        self.wait_until(&format!("position {lsn}"), |client| {
            position(&client.postgres_info("position")) >= lsn
        });
    }

    /// Waits until `holds` returns true.
    #[track_caller]
    fn wait_until(&mut self, what: &str, mut holds: impl FnMut(&mut Client) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "the condition is not met in time: {what}; {}",
                self.call("INFO postgres")
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn position(lsn: &str) -> u64 {
    let (high, low) = lsn.split_once('/').expect("a position");
    let part = |text| u64::from_str_radix(text, 16).expect("a position");
    part(high) << 32 | part(low)
}
