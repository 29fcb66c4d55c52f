//! Connections: the parsed address, and a pool that loads and writes share.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pgwire_replication::ReplicationConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Config, NoTls};

use crate::error::{Error, classified, describe_error};
use crate::relay;
use crate::sql::PRINTING;
use crate::tls::{self, Tls};

/// Maximum time to establish a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Requests TLS from a server, which replies with one byte, `S` or `N`.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// A connection that carries PostgreSQL's protocol.
pub(crate) type Wire = Box<dyn ReadWrite>;

pub(crate) trait ReadWrite: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ReadWrite for T {}

/// The address of PostgreSQL.
#[derive(Debug, Clone)]
pub struct Address {
    config: Config,
    /// `None` for plaintext connections.
    tls: Option<Tls>,
    /// The server did not support TLS when a connection was last established.
    is_plaintext: Arc<AtomicBool>,
    /// A host name, or the directory of a Unix socket.
    host: String,
    port: u16,
    user: String,
    password: String,
    database: String,
}

impl Address {
    /// Parses `postgres://user:password@host:port/database?sslmode=...`, and reads the certificates that it names.
    ///
    /// # Errors
    /// The reason why the address is invalid.
    pub fn parse(url: &str, statement_timeout: Duration) -> Result<Address, String> {
        let (url, mut tls) = tls::take_from(url)?;
        let mut config: Config = url
            .parse()
            .map_err(|error| format!("postgres.url cannot be read: {error}"))?;
        match config.get_ssl_mode() {
            SslMode::Prefer => {}
            SslMode::Disable => tls = None,
            _ => return Err("postgres.url must begin with postgres:// to use TLS".to_owned()),
        }
        let host = match config.get_hosts() {
            [Host::Tcp(host)] => host.clone(),
            #[cfg(unix)]
            [Host::Unix(path)] => {
                tls = None;
                path.display().to_string()
            }
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
            tls,
            is_plaintext: Arc::default(),
            host,
            port,
            user,
            password,
            database,
        })
    }

    /// Returns the address for messages, without the password.
    pub fn shown(&self) -> String {
        format!("{}:{}/{}", self.host, self.port, self.database)
    }

    /// Returns the configuration of a replication client. It connects directly to PostgreSQL, or through a relay if TLS
    /// is used.
    pub async fn replication(
        &self,
        slot: &str,
        publication: &str,
    ) -> Result<ReplicationConfig, Error> {
        let is_direct = self.tls.is_none() || self.is_plaintext.load(Relaxed);
        let host = if is_direct {
            self.host.clone()
        } else {
            let wire = self.within_time(self.dial()).await?;
            let folder = relay::to(wire, self.port, CONNECT_TIMEOUT);
            let folder = folder.map_err(|error| {
                self.unreachable(&format!(
                    "cannot create a socket for its replication in the folder for temporary files: {error}"
                ))
            })?;
            folder.display().to_string()
        };
        let config = ReplicationConfig::new(
            host,
            self.user.clone(),
            self.password.clone(),
            self.database.clone(),
            slot,
            publication,
        );
        Ok(config
            .with_port(self.port)
            .with_status_interval(Duration::from_secs(1))
            .with_options(PRINTING)
            .with_application_name("larder"))
    }

    pub async fn connect(&self) -> Result<Client, Error> {
        let connecting = async {
            let wire = self.dial().await?;
            Ok(self.config.connect_raw(wire, NoTls).await)
        };
        let connected = self.within_time(connecting).await?;
        let (client, connection) = connected.map_err(|error| {
            let message = self.unreachable_message(&describe_error(&error));
            classified(&error, message)
        })?;
        tokio::spawn(async move {
            // The error is also returned to the user of the client.
            let _ = connection.await;
        });
        Ok(client)
    }

    async fn within_time<T>(
        &self,
        connecting: impl Future<Output = Result<T, String>>,
    ) -> Result<T, Error> {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await;
        let connected = connected.unwrap_or_else(|_| Err("it does not answer".to_owned()));
        connected.map_err(|why| self.unreachable(&why))
    }

    fn unreachable(&self, why: &str) -> Error {
        Error::Unreachable(self.unreachable_message(why))
    }

    fn unreachable_message(&self, why: &str) -> String {
        let shown = self.shown();
        let advice = if why.contains("password missing") {
            "; it requires one: postgres.url = \"postgres://user:password@host/database\""
        } else {
            ""
        };
        format!("PostgreSQL at {shown} cannot be reached: {why}{advice}")
    }

    /// Opens a connection, with TLS as the address specifies.
    async fn dial(&self) -> Result<Wire, String> {
        let to_text = |error: io::Error| error.to_string();
        if self.host.starts_with('/') {
            let path = format!("{}/.s.PGSQL.{}", self.host, self.port);
            return Ok(Box::new(UnixStream::connect(path).await.map_err(to_text)?));
        }
        let mut stream = TcpStream::connect((&*self.host, self.port))
            .await
            .map_err(to_text)?;
        stream.set_nodelay(true).map_err(to_text)?;
        let socket = socket2::SockRef::from(&stream);
        socket.set_keepalive(true).map_err(to_text)?;
        let Some(tls) = &self.tls else {
            return Ok(Box::new(stream));
        };
        stream.write_all(&SSL_REQUEST).await.map_err(to_text)?;
        let answer = stream.read_u8().await.map_err(to_text)?;
        self.is_plaintext.store(answer == b'N', Relaxed);
        match answer {
            b'S' => {}
            b'N' if tls.allows_plaintext => return Ok(Box::new(stream)),
            b'N' => return Err("it does not support TLS, which sslmode requires".to_owned()),
            _ => return Err("it does not answer as PostgreSQL does".to_owned()),
        }
        let name = ServerName::try_from(self.host.clone())
            .map_err(|_| format!("{} cannot be the name in a certificate", self.host))?;
        let connecting = tls.connector.connect(name, stream).await;
        Ok(Box::new(connecting.map_err(|e| format!("TLS: {e}"))?))
    }
}

/// A pool of connections for loads and writes, which are opened on demand.
pub struct Pool {
    address: Address,
    permits: Semaphore,
    idle: Mutex<Vec<Client>>,
}

/// A connection that was taken from the pool.
pub struct PooledClient<'a> {
    pool: &'a Pool,
    client: Option<Client>,
    _permit: SemaphorePermit<'a>,
}

impl Pool {
    pub fn new(address: Address, connections: u32) -> Pool {
        Pool {
            address,
            permits: Semaphore::new(connections as usize),
            idle: Mutex::default(),
        }
    }

    pub async fn get(&self) -> Result<PooledClient<'_>, Error> {
        let permit = self.permits.acquire().await;
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
        Ok(PooledClient {
            pool: self,
            client: Some(client),
            _permit: permit,
        })
    }

    /// Closes idle connections. After a connection was lost, they may belong to a server that no longer exists.
    pub fn clear(&self) {
        self.idle().clear();
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Client>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PooledClient<'_> {
    pub fn client(&self) -> &Client {
        self.client.as_ref().expect("given back when dropped")
    }

    /// Returns the connection to the pool. A connection that is dropped instead, for example in the middle of a
    /// transaction, is closed.
    pub fn release(mut self) {
        if let Some(client) = self.client.take().filter(|client| !client.is_closed()) {
            self.pool.idle().push(client);
        }
    }
}
