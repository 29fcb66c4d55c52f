//! Mutual TLS between nodes: each presents a certificate that the cluster's authority has signed and that names the node.
//!
//! The files are checked before each new connection. A replacement is used from then on if it is valid; otherwise, the previous
//! contents remain in use.

use std::error::Error as _;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore,
    ServerConfig, SignatureScheme,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use super::PeerIdentity;
use super::pem::{FileStamps, certificates, unreadable};

/// PEM files of a node.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The authority that signs the certificates of all nodes of the cluster, and no others.
    pub authority: PathBuf,
    /// This node's own certificate and its key.
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// The TLS configuration of both sides of a node's connections.
#[derive(Clone)]
pub struct Tls(Arc<TlsShared>);

struct TlsShared {
    files: TlsFiles,
    state: ArcSwap<TlsState>,
    stamps: Mutex<FileStamps>,
}

/// The contents of the files when they were read.
struct TlsState {
    acceptor: TlsAcceptor,
    roots: Arc<RootCertStore>,
    verifier: Arc<WebPkiServerVerifier>,
    certificate: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl TlsFiles {
    fn read_stamps(&self) -> FileStamps {
        FileStamps::read([&*self.authority, &*self.certificate, &*self.key])
    }
}

impl TlsState {
    fn read(files: &TlsFiles) -> Result<TlsState, String> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&files.authority)? {
            let added = roots.add(certificate);
            added.map_err(|error| unreadable(&files.authority, &error))?;
        }
        let roots = Arc::new(roots);
        let certificate = certificates(&files.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&files.key)
            .map_err(|error| unreadable(&files.key, &error))?;
        let provider = || Arc::new(ring::default_provider());
        let refused = |error: &dyn std::fmt::Display| {
            format!(
                "{} and {} cannot be used together: {error}",
                files.certificate.display(),
                files.key.display()
            )
        };
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider())
            .build()
            .map_err(|error| unreadable(&files.authority, &error))?;
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider())
            .build()
            .map_err(|error| unreadable(&files.authority, &error))?;
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_client_cert_verifier(clients)
            .with_single_cert(certificate.clone(), key.clone_key())
            .map_err(|error| refused(&error))?;
        Ok(TlsState {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            roots,
            verifier,
            certificate,
            key,
        })
    }
}

impl Tls {
    /// # Errors
    /// A file cannot be read, or does not match the others: which one, and the reason.
    pub fn open(files: &TlsFiles) -> Result<Tls, String> {
        // Checked before they are read, so that a change in between is detected.
        let stamps = Mutex::new(files.read_stamps());
        Ok(Tls(Arc::new(TlsShared {
            state: ArcSwap::from_pointee(TlsState::read(files)?),
            files: files.clone(),
            stamps,
        })))
    }

    /// Returns the current contents of the files, if they are valid.
    fn current_state(&self) -> Arc<TlsState> {
        let now = self.0.files.read_stamps();
        let mut stamps = self.0.stamps.lock().unwrap_or_else(PoisonError::into_inner);
        if *stamps != now {
            *stamps = now;
            match TlsState::read(&self.0.files) {
                Ok(state) => {
                    self.0.state.store(Arc::new(state));
                    tracing::info!(
                        "new connections to nodes use the replaced certificate (cluster.tls_cert)"
                    );
                }
                Err(why) => tracing::warn!(
                    why,
                    "the TLS files for nodes (cluster.tls_*) have changed and cannot be used; the previous ones remain in use"
                ),
            }
        }
        self.0.state.load_full()
    }

    /// Connects to a node.
    ///
    /// # Errors
    /// The peer's certificate does not belong to this node, or the connection failed: see [`explain`].
    pub async fn connect(
        &self,
        identity: &PeerIdentity,
        socket: TcpStream,
    ) -> io::Result<client::TlsStream<TcpStream>> {
        let state = self.current_state();
        let names = identity
            .certificate_names()
            .map(|name| ServerName::try_from(name.to_owned()));
        let names: Vec<_> = names.into_iter().flatten().collect();
        let first = names.first().cloned();
        let name = first.ok_or_else(|| io::Error::other("the node has no name that TLS knows"))?;
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(state.roots.clone())
            .with_client_auth_cert(state.certificate.clone(), state.key.clone_key())
            .map_err(io::Error::other)?;
        let verifier = AnyName {
            names,
            verifier: state.verifier.clone(),
        };
        config
            .dangerous()
            .set_certificate_verifier(Arc::new(verifier));
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect(name, socket).await
    }

    /// Accepts a connection, and returns it with the peer's certificate.
    ///
    /// # Errors
    /// The peer presented no certificate that the authority has signed, or the connection failed: see [`explain`].
    pub async fn accept(
        &self,
        socket: TcpStream,
    ) -> io::Result<(server::TlsStream<TcpStream>, CertificateDer<'static>)> {
        let acceptor = self.current_state().acceptor.clone();
        let socket = match acceptor.accept(socket).into_fallible().await {
            Ok(socket) => socket,
            Err((error, mut socket)) => {
                // Reads the rest of the input, so that the peer can read the reason before the connection is closed: unread bytes
                // would reset it.
                if socket.shutdown().await.is_ok() {
                    let _ = tokio::io::copy(&mut socket, &mut tokio::io::sink()).await;
                }
                return Err(error);
            }
        };
        let shown = socket.get_ref().1.peer_certificates();
        let certificate = shown
            .and_then(|all| all.first())
            .map(|it| it.clone().into_owned());
        let certificate =
            certificate.ok_or_else(|| io::Error::other("the peer presented no certificate"))?;
        Ok((socket, certificate))
    }
}

/// Checks a server's certificate as usual, but accepts any of a node's names: users' own authorities certify hosts, larder's
/// certify nodes.
#[derive(Debug)]
struct AnyName {
    names: Vec<ServerName<'static>>,
    verifier: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let mut wrong = rustls::Error::General("the node has no name that TLS knows".to_owned());
        for name in &self.names {
            let checked =
                self.verifier
                    .verify_server_cert(end_entity, intermediates, name, ocsp, now);
            match checked {
                Ok(verified) => return Ok(verified),
                Err(error) => wrong = error,
            }
        }
        Err(wrong)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// Checks whether a certificate, which was verified before, belongs to a node.
///
/// # Errors
/// The certificate belongs to another node; the text states the remedy.
pub(super) fn check_names(
    certificate: &CertificateDer<'_>,
    identity: &PeerIdentity,
) -> Result<(), String> {
    let parsed = ParsedCertificate::try_from(certificate).map_err(|error| error.to_string())?;
    let names = identity.certificate_names();
    let is_named = names
        .iter()
        .filter_map(|name| ServerName::try_from(*name).ok())
        .any(|name| rustls::client::verify_server_name(&parsed, &name).is_ok());
    if is_named {
        Ok(())
    } else {
        Err(format!(
            "you connect as node {}, and your certificate names neither {} nor {}: give each node its own certificate",
            identity.name, names[0], names[1]
        ))
    }
}

/// Describes the failure, with advice if TLS is the cause.
pub(super) fn explain(error: &io::Error) -> String {
    let inner = error
        .get_ref()
        .and_then(|it| it.downcast_ref::<rustls::Error>());
    let advice = match inner {
        Some(rustls::Error::InvalidCertificate(wrong)) => match wrong {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "its certificate was signed by an authority that this node does not trust; give all nodes certificates of one authority, and that authority's certificate"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "its certificate names another node or host; give it one that names the node, or its host in the cluster's map"
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => {
                "its certificate is not valid at this time; renew it, or set the clocks"
            }
            _ => "its certificate cannot be used",
        },
        Some(rustls::Error::NoCertificatesPresented) => {
            "it presented no certificate; configure one on every node"
        }
        Some(rustls::Error::AlertReceived(
            AlertDescription::UnknownCA | AlertDescription::DecryptError,
        )) => {
            "it does not trust the authority that signed this node's certificate; give all nodes certificates of one authority, and that authority's certificate"
        }
        Some(rustls::Error::AlertReceived(_)) => "it rejects this node's certificate or its TLS",
        Some(rustls::Error::InvalidMessage(_)) => {
            "it does not speak TLS; configure certificates on all nodes, or on none"
        }
        _ => {
            return match error.source() {
                Some(source) => format!("{error}: {source}"),
                None => error.to_string(),
            };
        }
    };
    format!("TLS: {advice} ({error})")
}
