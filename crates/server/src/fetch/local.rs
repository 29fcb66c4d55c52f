//! Segments that another version of the store has already: they are linked, not fetched.
//!
//! A digest says what a segment holds, so one that a kept version has under the same digest is the same file. A delta's base is most of
//! what a pull wants; of a whole version it is the partitions that did not change.
//!
//! 1. A file that is linked is a published version's as well. So no file of a pull that has another link is ever opened to be written:
//!    links that an interrupted pull left are removed first.
//! 2. What is linked was verified when it was fetched, and nothing is linked from a version that was found damaged; nor from others that
//!    have the damaged file, which count as damaged with it.
//! 3. If all of a version is here, it is pushed once more, and most likely because something here is damaged; and where one version is, others
//!    may be. Then what would be linked is read first, and fetched where its digest is another.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use larder_batch::SegmentEntry;

use super::Pull;
use super::download::Wanted;
use crate::error::Error;
use crate::stores::Store;

/// The files of a version that were linked.
#[derive(Debug, Default)]
pub struct Linked(HashSet<String>);

impl Linked {
    pub fn has(&self, entry: &SegmentEntry) -> bool {
        self.0.contains(&entry.file)
    }
}

/// Links what the store has, and gives what is left to be fetched.
///
/// # Errors
/// [`Error::Io`] for what an interrupted pull left and cannot be removed.
pub fn link<'a>(
    store: &Store,
    pull: &Pull,
    wanted: Vec<Wanted<'a>>,
) -> Result<(Vec<Wanted<'a>>, Linked), Error> {
    let have = store.segments_here();
    let is_here = |one: &Wanted<'_>| have.contains_key(&one.entry.digest);
    let is_suspect = store.has_damage() || wanted.iter().all(is_here);
    let mut linked = Linked::default();
    let mut lacking = Vec::new();
    for one in wanted {
        unlink_shared(&one.path)?;
        let from = have.get(&one.entry.digest);
        let from = from.filter(|from| !is_suspect || is_intact(from, one.entry, pull));
        pull.check_cancelled()?;
        if from.is_some_and(|from| is_linked(from, &one)) {
            pull.linked(one.entry.size_bytes);
            linked.0.insert(one.entry.file.clone());
        } else {
            lacking.push(one);
        }
    }
    Ok((lacking, linked))
}

fn is_intact(path: &Path, entry: &SegmentEntry, pull: &Pull) -> bool {
    let mut digest = entry.begin_digest();
    let mut buffer = vec![0; 1 << 20];
    let Ok(mut file) = File::open(path) else {
        return false;
    };
    while pull.stopped().is_none() {
        match file.read(&mut buffer) {
            Ok(0) => return digest.finish_hex() == entry.digest,
            Ok(count) => digest.update(&buffer[..count]),
            Err(_) => return false,
        }
    }
    false
}

fn unlink_shared(path: &Path) -> Result<(), Error> {
    let is_shared = std::fs::symlink_metadata(path).is_ok_and(|it| it.nlink() > 1);
    match is_shared {
        true => std::fs::remove_file(path).map_err(Error::io("remove", path)),
        false => Ok(()),
    }
}

/// It may have been removed meanwhile, or lie where no links can be made: then it is fetched.
fn is_linked(from: &Path, wanted: &Wanted<'_>) -> bool {
    let is_whole = std::fs::metadata(from).is_ok_and(|it| it.len() == wanted.entry.size_bytes);
    if !is_whole {
        return false;
    }
    let _ = std::fs::remove_file(&wanted.path);
    match std::fs::hard_link(from, &wanted.path) {
        Ok(()) => true,
        Err(error) => {
            tracing::info!(from = %from.display(), %error, "a segment that is here cannot be linked, and is fetched");
            false
        }
    }
}
