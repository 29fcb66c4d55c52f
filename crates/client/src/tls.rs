//! TLS to a server: certificate checks, client certificates, and advice on failures.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use crate::error::Error;

/// PEM files for TLS. Without any, servers are checked with the authorities that the system trusts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authority that must have signed a server's certificate.
    pub authority: Option<PathBuf>,
    /// The certificate for a server that requests one, and its key: both or none.
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

/// The TLS configuration of connections. Cheap to clone.
#[derive(Clone)]
pub struct Tls {
    roots: Arc<Vec<CertificateDer<'static>>>,
    own: Option<ClientCert>,
    config: Arc<ClientConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Tls {
    /// # Errors
    /// [`Error::BadFile`] with the file that cannot be used, and the reason.
    pub fn open(files: &TlsFiles) -> Result<Tls, Error> {
        let roots = match &files.authority {
            Some(path) => certificates(path)?,
            // Unreadable ones are ignored. If none is left, no server is trusted, which is reported on the first
            // connection.
            None => rustls_native_certs::load_native_certs().certs,
        };
        let own = match (&files.certificate, &files.key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => {
                let chain = certificates(certificate)?;
                let pem = std::fs::read(key).map_err(|error| bad_file(key, &error))?;
                let for_http = PrivateKey::from_pem(&pem).map_err(|error| bad_file(key, &error))?;
                let for_http = ClientCert::new_with_certs(&for_http_all(&chain), for_http);
                let key =
                    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| bad_file(key, &error))?;
                Some((chain, key, for_http))
            }
            (Some(lone), None) | (None, Some(lone)) => {
                return Err(bad_file(
                    lone,
                    &"a certificate and its key are given together",
                ));
            }
        };
        let mut store = RootCertStore::empty();
        match &files.authority {
            Some(path) => {
                for root in &roots {
                    store
                        .add(root.clone())
                        .map_err(|error| bad_file(path, &error))?;
                }
            }
            None => {
                store.add_parsable_certificates(roots.iter().cloned());
            }
        }
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("ring has what they need")
            .with_root_certificates(store);
        let (config, own) = match (own, &files.certificate) {
            (Some((chain, key, for_http)), Some(path)) => {
                let config = config.with_client_auth_cert(chain, key);
                (
                    config.map_err(|error| bad_file(path, &error))?,
                    Some(for_http),
                )
            }
            _ => (config.with_no_client_auth(), None),
        };
        Ok(Tls {
            roots: Arc::new(roots),
            own,
            config: Arc::new(config),
        })
    }

    /// Returns the same configuration for HTTP.
    pub(crate) fn for_http(&self) -> TlsConfig {
        TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(for_http_all(&self.roots))))
            .client_cert(self.own.clone())
            .unversioned_rustls_crypto_provider(provider())
            .build()
    }

    /// Creates a connection to the host of `address` (`host:port`).
    pub(crate) fn connection(&self, address: &str) -> Result<ClientConnection, String> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
        ClientConnection::new(self.config.clone(), name).map_err(|error| error.to_string())
    }
}

fn for_http_all(certificates: &[CertificateDer<'_>]) -> Vec<Certificate<'static>> {
    let each = certificates.iter();
    each.map(|it| Certificate::from_der(it).to_owned())
        .collect()
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(none) if none.is_empty() => Err(bad_file(path, &"it holds no certificate")),
        Ok(all) => Ok(all),
        Err(error) => Err(bad_file(path, &error)),
    }
}

fn bad_file(path: &Path, why: &dyn fmt::Display) -> Error {
    Error::BadFile {
        path: path.to_owned(),
        detail: why.to_string(),
    }
}

/// Returns advice if TLS is the reason why a connection failed.
pub(crate) fn advice(error: &io::Error) -> Option<String> {
    let mut inner = error
        .get_ref()
        .map(|it| it as &(dyn std::error::Error + 'static));
    while let Some(it) = inner {
        if let Some(tls) = it.downcast_ref::<rustls::Error>() {
            return Some(advice_on(tls));
        }
        if let Some(io) = it.downcast_ref::<io::Error>() {
            return advice(io);
        }
        inner = it.source();
    }
    None
}

pub(crate) fn advice_on(error: &rustls::Error) -> String {
    let advice = match error {
        rustls::Error::InvalidCertificate(wrong) => match wrong {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "its certificate was signed by an authority that is not trusted here; give that authority's certificate with --ca FILE or LARDER_CA"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "its certificate is for other hosts than this one; connect to a host name in the certificate"
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => {
                "its certificate is not valid at this time; renew it, or set the clocks"
            }
            _ => "its certificate cannot be used",
        },
        rustls::Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::DecryptError,
        ) => {
            "it requires a certificate that its own authority has signed; give one with --tls-cert and --tls-key, or LARDER_TLS_CERT and LARDER_TLS_KEY"
        }
        rustls::Error::InvalidMessage(_) => {
            "it does not support TLS; use http:// instead of https://"
        }
        _ => "TLS with it failed",
    };
    format!("{advice} ({error})")
}
