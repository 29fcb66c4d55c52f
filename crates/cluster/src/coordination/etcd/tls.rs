//! TLS to etcd, with certificates from files or from the system.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::coordination::Error;

/// PEM files for members with an `https` address.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// The authority that signed the members' certificates; `None` for the system's trusted authorities.
    pub authority: Option<PathBuf>,
    /// The node's own certificate and key, if etcd requires client certificates.
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

impl TlsFiles {
    pub fn connector(&self) -> Result<TlsConnector, Error> {
        self.config()
            .map(|config| TlsConnector::from(Arc::new(config)))
            .map_err(|why| Error::Refused(format!("TLS to etcd: {why}")))
    }

    fn config(&self) -> Result<ClientConfig, String> {
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(self.roots()?);
        match (&self.certificate, &self.key) {
            (None, None) => Ok(config.with_no_client_auth()),
            (Some(certificate), Some(key)) => {
                let chain = certificates(certificate)?;
                let private =
                    PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, &error))?;
                config
                    .with_client_auth_cert(chain, private)
                    .map_err(|error| {
                        format!(
                            "{} and {} cannot be used: {error}",
                            certificate.display(),
                            key.display()
                        )
                    })
            }
            _ => Err(
                "a client certificate needs a key, and a key needs a certificate; configure both"
                    .to_owned(),
            ),
        }
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        match &self.authority {
            Some(path) => {
                for certificate in certificates(path)? {
                    roots
                        .add(certificate)
                        .map_err(|error| unreadable(path, &error))?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        if roots.is_empty() {
            Err("this system has no trusted certificate authorities; configure the file of the authority that signed etcd's certificate".to_owned())
        } else {
            Ok(roots)
        }
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(none) if none.is_empty() => Err(format!("{} contains no certificate", path.display())),
        Ok(all) => Ok(all),
        Err(error) => Err(unreadable(path, &error)),
    }
}

fn unreadable(path: &Path, error: &dyn fmt::Display) -> String {
    format!("{} cannot be read: {error}", path.display())
}
