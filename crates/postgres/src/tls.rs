//! TLS connections to PostgreSQL: `sslmode` and the related parameters of the address, with the same meaning as in
//! libpq.
//!
//! | `sslmode` | encrypted | the certificate must be signed by a trusted authority | and must name this host |
//! |---|---|---|---|
//! | `disable` | no | | |
//! | `prefer` | if the server supports it | | |
//! | `require` | yes | if `sslrootcert` is set | |
//! | `verify-ca` | yes | yes | |
//! | `verify-full` | yes | yes | yes |
//!
//! A certificate that is itself in `sslrootcert` needs no other authority, so self-signed certificates can be trusted.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tokio_rustls::TlsConnector;
use url::form_urlencoded;

/// The TLS configuration of a connection.
#[derive(Clone)]
pub struct Tls {
    /// Use plaintext if the server does not support TLS.
    pub allows_plaintext: bool,
    pub connector: TlsConnector,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

/// The TLS parameters of an address.
#[derive(Debug, Default, PartialEq, Eq)]
struct TlsParameters {
    mode: Option<String>,
    root: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

/// Removes the TLS parameters from an address, and returns the TLS configuration; `None` for plaintext.
///
/// # Errors
/// The reason why the parameters, or a file that they name, are invalid.
pub fn take_from(url: &str) -> Result<(String, Option<Tls>), String> {
    let (rest, parameters) = split(url);
    let tls = parameters
        .tls()
        .map_err(|why| format!("postgres.url: {why}"))?;
    Ok((rest, tls))
}

fn split(url: &str) -> (String, TlsParameters) {
    let mut parameters = TlsParameters::default();
    let is_url = url.starts_with("postgres://") || url.starts_with("postgresql://");
    let Some((base, query)) = url.split_once('?').filter(|_| is_url) else {
        return (url.to_owned(), parameters);
    };
    let mut others: Vec<&str> = Vec::new();
    for pair in query.split('&') {
        let Some((name, value)) = form_urlencoded::parse(pair.as_bytes()).next() else {
            continue;
        };
        match &*name {
            "sslmode" => parameters.mode = Some(value.into_owned()),
            "sslrootcert" => parameters.root = Some(PathBuf::from(&*value)),
            "sslcert" => parameters.certificate = Some(PathBuf::from(&*value)),
            "sslkey" => parameters.key = Some(PathBuf::from(&*value)),
            _ => others.push(pair),
        }
    }
    let rest = if others.is_empty() {
        base.to_owned()
    } else {
        format!("{base}?{}", others.join("&"))
    };
    (rest, parameters)
}

impl TlsParameters {
    fn tls(&self) -> Result<Option<Tls>, String> {
        let mode = self.mode.as_deref().unwrap_or("prefer");
        // For compatibility with old addresses, as in libpq.
        let is_signed = mode == "require" && self.root.is_some();
        let (checks_signature, checks_name) = match mode {
            "disable" => return Ok(None),
            "prefer" | "require" => (is_signed, false),
            "verify-ca" => (true, false),
            "verify-full" => (true, true),
            _ => {
                return Err(format!(
                    "sslmode is {mode}; it may be disable, prefer, require, verify-ca or verify-full"
                ));
            }
        };
        let provider = Arc::new(ring::default_provider());
        let verifier = Verifier {
            trusted: checks_signature
                .then(|| trusted(self.root.as_deref()))
                .transpose()?,
            checks_name,
            provider: provider.clone(),
        };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let config = match (&self.certificate, &self.key) {
            (None, None) => config.with_no_client_auth(),
            (Some(certificate), Some(key)) => {
                let chain = certificates(certificate, "sslcert")?;
                let private = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| unreadable("sslkey", key, &error))?;
                config
                    .with_client_auth_cert(chain, private)
                    .map_err(|error| format!("sslcert and sslkey cannot be used: {error}"))?
            }
            _ => return Err("sslcert and sslkey need each other".to_owned()),
        };
        Ok(Some(Tls {
            allows_plaintext: mode == "prefer",
            connector: TlsConnector::from(Arc::new(config)),
        }))
    }
}

fn unreadable(name: &str, path: &Path, error: &dyn fmt::Display) -> String {
    format!("{name} {} cannot be read: {error}", path.display())
}

fn certificates(path: &Path, name: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let unreadable = |error| unreadable(name, path, &error);
    let all = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
    let all: Result<Vec<_>, _> = all.collect();
    match all.map_err(unreadable)? {
        none if none.is_empty() => Err(format!("{name} {} holds no certificate", path.display())),
        all => Ok(all),
    }
}

/// The trusted certificates.
#[derive(Debug)]
struct Trusted {
    authorities: RootCertStore,
    /// Certificates that are trusted themselves.
    themselves: Vec<CertificateDer<'static>>,
}

/// Returns the certificates of a file, or those that the system trusts.
fn trusted(root: Option<&Path>) -> Result<Trusted, String> {
    let named = root.filter(|path| *path != Path::new("system"));
    let all = match named {
        Some(path) => certificates(path, "sslrootcert")?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let mut authorities = RootCertStore::empty();
    authorities.add_parsable_certificates(all.iter().cloned());
    if named.is_none() && authorities.is_empty() {
        return Err(
            "this system has no trusted authorities to verify certificates; set sslrootcert=FILE"
                .to_owned(),
        );
    }
    let themselves = if named.is_some() { all } else { Vec::new() };
    Ok(Trusted {
        authorities,
        themselves,
    })
}

/// The checks of a server's certificate.
#[derive(Debug)]
struct Verifier {
    /// The authorities that must have signed the certificate; `None` if the signature is not checked.
    trusted: Option<Trusted>,
    checks_name: bool,
    provider: Arc<CryptoProvider>,
}

impl Trusted {
    fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        provider: &CryptoProvider,
    ) -> Result<(), rustls::Error> {
        let verified = verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(certificate)?,
            &self.authorities,
            intermediates,
            now,
            provider.signature_verification_algorithms.all,
        );
        match verified {
            // The validity period is checked first. Any other error means that the certificate was not signed by
            // another one.
            Err(rustls::Error::InvalidCertificate(why))
                if !is_of_time(&why) && self.themselves.iter().any(|own| own == certificate) =>
            {
                Ok(())
            }
            verified => verified,
        }
    }
}

fn is_of_time(why: &CertificateError) -> bool {
    matches!(
        why,
        CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. }
    )
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(trusted) = &self.trusted {
            trusted.verify(certificate, intermediates, now, &self.provider)?;
        }
        if self.checks_name {
            verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_parameters_are_removed_from_the_address() {
        let url = "postgres://u:p@h/d?sslmode=verify-full&connect_timeout=3&sslrootcert=%2Fa%20b&options=-c%20x%3D1";
        let (rest, parameters) = split(url);
        assert_eq!(
            rest,
            "postgres://u:p@h/d?connect_timeout=3&options=-c%20x%3D1"
        );
        assert_eq!(parameters.mode.as_deref(), Some("verify-full"));
        assert_eq!(parameters.root, Some(PathBuf::from("/a b")));
        for untouched in ["postgres://u:p@h/d", "host=h sslmode=disable"] {
            assert_eq!(
                split(untouched),
                (untouched.to_owned(), TlsParameters::default())
            );
        }
        assert_eq!(split("postgresql://h?sslmode=require").0, "postgresql://h");
    }

    #[test]
    fn invalid_tls_parameters_are_refused() {
        let refused = |url: &str| take_from(url).expect_err("refused");
        assert_eq!(
            refused("postgres://h?sslmode=allow"),
            "postgres.url: sslmode is allow; it may be disable, prefer, require, verify-ca or verify-full"
        );
        let missing = refused("postgres://h?sslmode=require&sslrootcert=/no/such");
        assert!(
            missing.starts_with("postgres.url: sslrootcert /no/such cannot be read"),
            "{missing}"
        );
        assert_eq!(
            refused("postgres://h?sslcert=/a"),
            "postgres.url: sslcert and sslkey need each other"
        );
        assert!(
            take_from("postgres://h?sslmode=disable")
                .unwrap()
                .1
                .is_none()
        );
        assert!(
            take_from("postgres://h")
                .unwrap()
                .1
                .unwrap()
                .allows_plaintext
        );
    }
}
