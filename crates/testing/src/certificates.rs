//! Certificates for one test: an authority that signs them, and a folder for their files.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertifiedIssuer, DnType, IsCa, KeyPair};
pub use rcgen::{CertificateParams, date_time_ymd};

/// A certificate authority. `ca.pem` in its folder is its own certificate.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

/// A certificate and its key, as PEM.
#[derive(Debug, Clone)]
pub struct Signed {
    pub certificate: String,
    pub key: String,
}

impl Default for Authority {
    fn default() -> Authority {
        Authority::new()
    }
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let authority = Authority {
            issuer: CertifiedIssuer::self_signed(params, key).expect("signed"),
            folder: tempfile::tempdir().expect("a folder"),
        };
        authority.file("ca.pem", &authority.pem());
        authority
    }

    /// Returns its own certificate.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Returns the path of a file in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file to its folder.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        let folder = path.parent().expect("it is in the folder");
        std::fs::create_dir_all(folder).expect("a folder");
        std::fs::write(&path, text).expect("written");
        path
    }

    /// Signs a certificate for a host or an address, which is also its common name.
    pub fn sign(&self, name: &str) -> Signed {
        self.sign_with(name, |_| {})
    }

    /// Like [`Authority::sign`], with modified parameters.
    pub fn sign_with(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Signed {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, name);
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        Signed {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

/// Creates a self-signed certificate, like `openssl req -x509`.
pub fn self_signed(name: &str) -> Signed {
    let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("signed");
    Signed {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    }
}
