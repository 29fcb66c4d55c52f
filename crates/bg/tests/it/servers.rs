//! Servers for tests, each on a free port and stopped when dropped: those of `larder_testing`, configured for bg's
//! tests.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};

pub use larder_testing::{Server, memcached, redis};
use larder_testing::{free_port, report_missing, temp_folder};

pub fn postgres() -> Option<Server> {
    larder_testing::postgres::start(&[
        "full_page_writes=off",
        "wal_level=minimal",
        "max_wal_senders=0",
        "max_connections=200",
        "shared_buffers=64MB",
    ])
}

/// A database for one test, on a PostgreSQL server that the tests of this process share while any of them uses it.
pub struct Database {
    server: Arc<Server>,
    name: String,
}

impl Database {
    pub fn address(&self) -> String {
        let server = self.server.address();
        format!("postgres://postgres@{server}/{}", self.name)
    }
}

pub fn database() -> Option<Database> {
    static SHARED: Mutex<(Weak<Server>, u32)> = Mutex::new((Weak::new(), 0));
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let server = match shared.0.upgrade() {
        Some(server) => server,
        None => Arc::new(postgres()?),
    };
    shared.0 = Arc::downgrade(&server);
    shared.1 += 1;
    let name = format!("test_{}", shared.1);
    ask_postgres(server.port, &format!("CREATE DATABASE {name}")).expect("created");
    Some(Database { server, name })
}

/// Runs statements on a new connection. Returns the first column of the last row.
pub fn ask_postgres(port: u16, text: &str) -> Result<String, tokio_postgres::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let address = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        let (client, connection) = tokio_postgres::connect(&address, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        let messages = client.simple_query(text).await?;
        let mut last = String::new();
        for message in messages {
            if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
                last = row.get(0).unwrap_or_default().to_owned();
            }
        }
        Ok(last)
    })
}

/// Starts a server that implements MongoDB's protocol in memory.
pub fn mongo() -> Option<Server> {
    let jars = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.mongo-java-server");
    if !jars.join("installed.txt").exists() || !has_java() {
        report_missing("mongo-java-server");
        return None;
    }
    let port = free_port();
    let mut command = Command::new("java");
    let class_path = format!("{0}:{0}/*", jars.display());
    // Options for a quick start and little memory.
    command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"]);
    command.args(["-cp", &class_path, "Main", &port.to_string()]);
    Some(Server::start(command, port, temp_folder("mongo")))
}

fn has_java() -> bool {
    let mut java = Command::new("java");
    java.arg("-version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    java.status().is_ok_and(|status| status.success())
}
