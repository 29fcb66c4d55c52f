//! Connections: what the address says, and a few that loads and writes share.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pgwire_replication::ReplicationConfig;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Config, NoTls};

use crate::error::{Error, said};
use crate::sql::PRINTING;

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where PostgreSQL is.
#[derive(Debug, Clone)]
pub struct Address {
    config: Config,
    host: String,
    port: u16,
    user: String,
    password: String,
    database: String,
}

impl Address {
    /// Reads `postgres://user:password@host:port/database`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(url: &str, statement_timeout: Duration) -> Result<Address, String> {
        let mut config: Config = url
            .parse()
            .map_err(|error| format!("postgres.url cannot be read: {error}"))?;
        if !matches!(config.get_ssl_mode(), SslMode::Disable | SslMode::Prefer) {
            return Err(
                "postgres.url asks for TLS, which larder does not speak to PostgreSQL yet; connect through a tunnel on this machine, with sslmode=disable"
                    .to_owned(),
            );
        }
        let host = match config.get_hosts() {
            [Host::Tcp(host)] => host.clone(),
            #[cfg(unix)]
            [Host::Unix(path)] => path.display().to_string(),
            _ => return Err("postgres.url must name one host".to_owned()),
        };
        let user = config.get_user().unwrap_or("postgres").to_owned();
        let password = config.get_password().unwrap_or_default();
        let password = String::from_utf8_lossy(password).into_owned();
        let database = config.get_dbname().unwrap_or(&user).to_owned();
        let port = config.get_ports().first().copied().unwrap_or(5432);
        config
            .user(&user)
            .dbname(&database)
            .ssl_mode(SslMode::Disable);
        config.application_name("larder");
        config.connect_timeout(CONNECT_TIMEOUT);
        config.options(format!(
            "{PRINTING} -c statement_timeout={}",
            statement_timeout.as_millis()
        ));
        Ok(Address {
            config,
            host,
            port,
            user,
            password,
            database,
        })
    }

    /// For people: without the password.
    pub fn shown(&self) -> String {
        format!("{}:{}/{}", self.host, self.port, self.database)
    }

    pub fn replication(&self, slot: &str, publication: &str) -> ReplicationConfig {
        ReplicationConfig::new(
            self.host.clone(),
            self.user.clone(),
            self.password.clone(),
            self.database.clone(),
            slot,
            publication,
        )
        .with_port(self.port)
        .with_status_interval(Duration::from_secs(1))
        .with_options(PRINTING)
        .with_application_name("larder")
    }

    pub async fn connect(&self) -> Result<Client, Error> {
        let unreachable = |why: String| {
            Error::Unreachable(format!(
                "PostgreSQL at {} cannot be reached: {why}",
                self.shown()
            ))
        };
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, self.config.connect(NoTls));
        let (client, connection) = connecting
            .await
            .map_err(|_| unreachable("it does not answer".to_owned()))?
            .map_err(|error| unreachable(said(&error)))?;
        tokio::spawn(async move {
            // Whoever uses the client is told too.
            let _ = connection.await;
        });
        Ok(client)
    }
}

/// Connections for loads and writes, made as they are needed.
pub struct Pool {
    address: Address,
    room: Semaphore,
    idle: Mutex<Vec<Client>>,
}

/// A connection that nobody else uses.
pub struct Borrowed<'a> {
    pool: &'a Pool,
    client: Option<Client>,
    _permit: SemaphorePermit<'a>,
}

impl Pool {
    pub fn new(address: Address, connections: u32) -> Pool {
        Pool {
            address,
            room: Semaphore::new(connections as usize),
            idle: Mutex::default(),
        }
    }

    pub async fn get(&self) -> Result<Borrowed<'_>, Error> {
        let permit = self.room.acquire().await;
        let permit = permit.map_err(|_| Error::Unreachable("larder is stopping".to_owned()))?;
        let idle = loop {
            let idle = self.idle().pop();
            match idle {
                Some(client) if client.is_closed() => {}
                idle => break idle,
            }
        };
        let client = match idle {
            Some(client) => client,
            None => self.address.connect().await?,
        };
        Ok(Borrowed {
            pool: self,
            client: Some(client),
            _permit: permit,
        })
    }

    /// Closes connections that nobody uses: after a break, they may be to a server that is gone.
    pub fn clear(&self) {
        self.idle().clear();
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Client>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Borrowed<'_> {
    pub fn client(&self) -> &Client {
        self.client.as_ref().expect("given back when dropped")
    }

    /// Gives the connection back for others. One that is dropped without it, in the middle of something, is closed.
    pub fn give_back(mut self) {
        if let Some(client) = self.client.take().filter(|client| !client.is_closed()) {
            self.pool.idle().push(client);
        }
    }
}
