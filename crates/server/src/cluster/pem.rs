//! Reads PEM files of certificates, and detects their replacement.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Reads all certificates of a file, at least one.
///
/// # Errors
/// The file that cannot be used, and the reason.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(none) if none.is_empty() => Err(format!("{} contains no certificate", path.display())),
        Ok(all) => Ok(all),
        Err(error) => Err(unreadable(path, &error)),
    }
}

pub fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{} cannot be used: {error}", path.display())
}

/// A fingerprint of files: the inode, length and modification time of each.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FileStamps(Vec<Option<(u64, u64, i64, i64)>>);

impl FileStamps {
    pub fn read<'a>(files: impl IntoIterator<Item = &'a Path>) -> FileStamps {
        let look = |path: &Path| {
            let found = fs::metadata(path).ok()?;
            Some((found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
        };
        FileStamps(files.into_iter().map(look).collect())
    }
}
