//! PEM files of certificates, and whether they were replaced.

use std::fs;
use std::os::unix::fs::MetadataExt;
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

/// What was seen of some files: for each its inode, length and time.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Looked(Vec<Option<(u64, u64, i64, i64)>>);

impl Looked {
    pub fn at<'a>(files: impl IntoIterator<Item = &'a Path>) -> Looked {
        let look = |path: &Path| {
            let found = fs::metadata(path).ok()?;
            Some((found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
        };
        Looked(files.into_iter().map(look).collect())
    }
}
