//! PEM files of certificates.

use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// All certificates of a file: one at least.
///
/// # Errors
/// Which file cannot be used, and why.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(none) if none.is_empty() => Err(format!("{} holds no certificate", path.display())),
        Ok(all) => Ok(all),
        Err(error) => Err(unreadable(path, &error)),
    }
}

pub fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{} cannot be used: {error}", path.display())
}
