//! PostgreSQL instances for tests, and SQL connections to them.
//!
//! Most tests share one instance, with a database each; it is stopped when the tests end. A test that kills its
//! instance starts a separate one.

use std::os::unix::fs::PermissionsExt;
use std::sync::OnceLock;

use larder_testing::postgres::{self, Programs};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

pub struct Cluster(larder_testing::Server);

extern "C" fn stop_shared() {
    if let Some(Some(cluster)) = SHARED.get() {
        cluster.0.end();
        let _ = std::fs::remove_dir_all(cluster.0.folder());
    }
}

static SHARED: OnceLock<Option<Cluster>> = OnceLock::new();

impl Cluster {
    /// Returns the shared instance. If PostgreSQL is not installed, reports that and returns `None`.
    pub fn shared() -> Option<&'static Cluster> {
        let cluster = SHARED.get_or_init(|| {
            // SAFETY: the function accesses only a static that is never dropped.
            unsafe { libc::atexit(stop_shared) };
            Cluster::start(&[])
        });
        cluster.as_ref()
    }

    /// Starts a separate instance. `settings` override the common ones.
    pub fn start(settings: &[&str]) -> Option<Cluster> {
        let usual = [
            "wal_level=logical",
            "max_wal_senders=60",
            "max_replication_slots=60",
            "max_connections=300",
            "shared_buffers=32MB",
        ];
        postgres::start(&[&usual, settings].concat()).map(Cluster)
    }

    pub fn port(&self) -> u16 {
        self.0.port
    }

    /// Writes a file into its data folder.
    pub fn put(&self, name: &str, text: &str) {
        let path = self.0.folder().join("data").join(name);
        std::fs::write(&path, text).expect("written");
        let owner_alone = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, owner_alone).expect("set");
        let programs = Programs::find().expect("PostgreSQL is installed");
        programs.chown_to_user(&path).expect("given away");
    }

    /// Starts the stopped instance again.
    pub fn begin(&self) {
        self.0.restart();
    }

    /// Ends the instance: kills all its processes with SIGKILL (`at_once`), or performs a fast shutdown.
    pub fn kill(&self, at_once: bool) {
        if at_once { self.0.kill() } else { self.0.end() }
    }

    /// Creates a database and returns a connection to it.
    pub fn database(&self, name: &str) -> Sql {
        let name = super::unique_name(name);
        Sql::to(self.port(), "postgres").run(&format!("CREATE DATABASE {name}"));
        Sql::to(self.port(), &name)
    }
}

/// An SQL connection for a test.
pub struct Sql {
    runtime: tokio::runtime::Runtime,
    client: Client,
    port: u16,
    database: String,
}

impl Sql {
    pub fn connect(port: u16, database: &str) -> Result<Sql, tokio_postgres::Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let url = format!("postgres://postgres@127.0.0.1:{port}/{database}");
        let (client, connection) = runtime.block_on(tokio_postgres::connect(&url, NoTls))?;
        runtime.spawn(connection);
        Ok(Sql {
            runtime,
            client,
            port,
            database: database.to_owned(),
        })
    }

    pub fn to(port: u16, database: &str) -> Sql {
        Sql::connect(port, database).expect("PostgreSQL runs")
    }

    /// Opens another connection to the same database.
    pub fn another(&self) -> Sql {
        Sql::to(self.port, &self.database)
    }

    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// Returns the URL of the database through another port, such as a proxy's.
    pub fn url_at(&self, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/{}", self.database)
    }

    #[track_caller]
    pub fn run(&mut self, sql: &str) {
        if let Err(error) = self.try_run(sql) {
            panic!("{sql}: {error}");
        }
    }

    pub fn try_run(&mut self, sql: &str) -> Result<(), String> {
        let done = self.runtime.block_on(self.client.batch_execute(sql));
        done.map_err(|error| format!("{error} {:?}", error.as_db_error()))
    }

    /// Returns the rows, with columns joined by `,`.
    pub fn rows(&mut self, sql: &str) -> Vec<String> {
        let messages = self.runtime.block_on(self.client.simple_query(sql));
        let messages = messages.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let rows = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                let cells: Vec<&str> = (0..row.len())
                    .map(|at| row.get(at).unwrap_or("null"))
                    .collect();
                Some(cells.join(","))
            }
            _ => None,
        });
        rows.collect()
    }

    pub fn one(&mut self, sql: &str) -> String {
        self.rows(sql)
            .pop()
            .unwrap_or_else(|| panic!("{sql}: no row"))
    }
}
