//! TLS for clients, on both listeners: `server.tls_cert`, `server.tls_key` and `server.tls_client_ca`.
//!
//! 1. Invalid files are detected at the start. Later changes apply to new connections if they are valid: the files are checked
//!    once per second, and while they are invalid, the previous contents remain in use.
//! 2. A client that does not use TLS receives an error in its own protocol, before any of its requests is executed.
//! 3. Without these settings, none of this code runs.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use rustls::{AlertDescription, RootCertStore};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use larder_protocol::config::{ServerConfig, ServerSection};

use crate::cluster::pem::{self, FileStamps};
use crate::error::Error;
use crate::log_limit::LogLimit;

/// The timeout of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The first byte of every TLS connection.
const HANDSHAKE_RECORD: u8 = 0x16;
/// The interval at which the files are checked.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The TLS configuration for clients' connections.
pub struct ClientTls {
    files: Files,
    /// The configuration for new connections.
    acceptor: ArcSwap<rustls::ServerConfig>,
    seen_files: Mutex<FileStamps>,
    plain_log: LogLimit,
    failed_log: LogLimit,
}

struct Files {
    certificate: PathBuf,
    key: PathBuf,
    /// The authority of clients' certificates, if these are required.
    clients: Option<PathBuf>,
}

impl ClientTls {
    /// Returns `None` if TLS for clients is not configured.
    ///
    /// # Errors
    /// [`Error::BadRequest`] with the file that cannot be used, and the reason.
    pub fn open(config: &ServerConfig) -> Result<Option<Arc<ClientTls>>, Error> {
        let ServerSection {
            tls_cert: certificate,
            tls_key: key,
            tls_client_ca: clients,
            ..
        } = &config.server;
        if certificate.is_empty() {
            return Ok(None);
        }
        let files = Files {
            certificate: certificate.into(),
            key: key.into(),
            clients: (!clients.is_empty()).then(|| clients.into()),
        };
        // Checked before they are read, so that a change in between is detected.
        let seen = files.inspect();
        let acceptor = files.read().map_err(|why| {
            Error::BadRequest(format!("TLS for clients (server.tls_cert): {why}"))
        })?;
        Ok(Some(Arc::new(ClientTls {
            files,
            acceptor: ArcSwap::from_pointee(acceptor),
            seen_files: Mutex::new(seen),
            plain_log: LogLimit::default(),
            failed_log: LogLimit::default(),
        })))
    }

    /// Loads files that were replaced.
    pub fn refresh(&self) {
        let now = self.files.inspect();
        let mut seen = self
            .seen_files
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *seen == now {
            return;
        }
        *seen = now;
        match self.files.read() {
            Ok(acceptor) => {
                self.acceptor.store(Arc::new(acceptor));
                tracing::info!(
                    "the certificate of server.tls_cert was reloaded; new client connections use it"
                );
            }
            Err(why) => {
                tracing::warn!(
                    why,
                    "the changed TLS files cannot be loaded; the previous certificate stays in use"
                );
            }
        }
    }

    /// Performs the TLS handshake with a client. `wrap` adds a layer between TLS and the socket. Returns `None` on failure; a
    /// client that does not use TLS has then received `plain_reply`.
    pub async fn accept<S>(
        &self,
        socket: TcpStream,
        addr: IpAddr,
        plain_reply: &[u8],
        wrap: impl FnOnce(TcpStream) -> S,
    ) -> Option<TlsStream<S>>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    {
        let handshake = async {
            let mut first = [0];
            if socket.peek(&mut first).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if first[0] != HANDSHAKE_RECORD {
                self.refuse_plain(socket, addr, plain_reply).await;
                return Ok(None);
            }
            let acceptor = TlsAcceptor::from(self.acceptor.load_full());
            acceptor.accept(wrap(socket)).await.map(Some)
        };
        let error = match timeout(HANDSHAKE_TIMEOUT, handshake).await {
            Ok(Ok(stream)) => return stream,
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
        // A port scan closes the connection without sending anything; it is not logged.
        if error.kind() != io::ErrorKind::UnexpectedEof
            && let Some(times) = self.failed_log.note()
        {
            tracing::warn!(times, last_from = %addr, why = explain_handshake_error(&error), "a client's TLS handshake failed");
        }
        None
    }

    async fn refuse_plain(&self, mut socket: TcpStream, addr: IpAddr, reply: &[u8]) {
        if let Some(times) = self.plain_log.note() {
            tracing::warn!(times, last_from = %addr, "a client without TLS was rejected because server.tls_cert is set");
        }
        // Reads the rest of the input, so that the client can read the reason before the connection is closed: unread bytes would
        // reset it.
        if socket.write_all(reply).await.is_ok() && socket.shutdown().await.is_ok() {
            let _ = tokio::io::copy(&mut socket, &mut tokio::io::sink()).await;
        }
    }
}

impl Files {
    fn inspect(&self) -> FileStamps {
        let all = [
            Some(&self.certificate),
            Some(&self.key),
            self.clients.as_ref(),
        ];
        FileStamps::read(all.into_iter().flatten().map(PathBuf::as_path))
    }

    fn read(&self) -> Result<rustls::ServerConfig, String> {
        let provider = || Arc::new(ring::default_provider());
        let certificate = pem::certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| pem::unreadable(&self.key, &error))?;
        let config = rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let config = match &self.clients {
            None => config.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for authority in pem::certificates(path)? {
                    roots
                        .add(authority)
                        .map_err(|error| pem::unreadable(path, &error))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
                let verifier = verifier
                    .build()
                    .map_err(|error| pem::unreadable(path, &error))?;
                config.with_client_cert_verifier(verifier)
            }
        };
        let config = config.with_single_cert(certificate, key);
        config.map_err(|error| {
            let [certificate, key] = [&self.certificate, &self.key].map(|path| path.display());
            format!("{certificate} and {key} cannot be used together: {error}")
        })
    }
}

/// Describes the failure, with advice.
fn explain_handshake_error(error: &io::Error) -> String {
    let inner = error
        .get_ref()
        .and_then(|it| it.downcast_ref::<rustls::Error>());
    let advice = match inner {
        Some(rustls::Error::NoCertificatesPresented) => {
            "the client presented no certificate, and server.tls_client_ca requires one"
        }
        Some(rustls::Error::InvalidCertificate(_)) => {
            "the client's certificate was not signed by an authority of server.tls_client_ca, or is not valid at this time"
        }
        Some(rustls::Error::AlertReceived(
            AlertDescription::UnknownCA | AlertDescription::BadCertificate,
        )) => {
            "the client does not trust the authority that signed server.tls_cert; install that authority's certificate on the client"
        }
        Some(rustls::Error::AlertReceived(_)) => {
            "the client rejects this server's certificate or TLS version"
        }
        _ => return error.to_string(),
    };
    format!("{advice} ({error})")
}
