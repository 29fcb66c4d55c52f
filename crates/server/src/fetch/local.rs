//! Links segments that another version of the store already has, instead of fetching them.
//!
//! The digest identifies a segment's contents, so a kept version's segment with the same digest is the same file. In a pull of a
//! delta, most segments are its base's; in a pull of a complete version, the unchanged partitions.
//!
//! 1. A linked file also belongs to a published version. A file of a pull that has another link is therefore never opened for
//!    writing: links left by an interrupted pull are removed first.
//! 2. A linked file was verified when it was fetched. Nothing is linked from a version that is damaged, or from one that shares
//!    the damaged file and therefore counts as damaged too.
//! 3. If all of a version is present, it is being pushed again, probably because a local file is damaged. If one version is
//!    damaged, others may be. In both cases, candidates are read before they are linked, and fetched if their digest differs.

use std::collections::HashSet;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use larder_batch::SegmentEntry;
use larder_batch::version::files;

use super::Pull;
use super::download::WantedSegment;
use crate::error::Error;
use crate::stores::Store;

/// The files of a version that were linked.
#[derive(Debug, Default)]
pub struct LinkedSegments(HashSet<String>);

impl LinkedSegments {
    pub fn has(&self, entry: &SegmentEntry) -> bool {
        self.0.contains(&entry.file)
    }
}

/// Links the segments that the store has, and returns those that must be fetched.
///
/// # Errors
/// [`Error::Io`] if leftovers of an interrupted pull cannot be removed.
pub fn link_local_segments<'a>(
    store: &Store,
    pull: &Pull,
    segments: Vec<WantedSegment<'a>>,
) -> Result<(Vec<WantedSegment<'a>>, LinkedSegments), Error> {
    let local = store.local_segments();
    let is_local = |segment: &WantedSegment<'_>| local.contains_key(&segment.entry.digest);
    let is_suspect = store.has_damage() || segments.iter().all(is_local);
    let mut linked = LinkedSegments::default();
    let mut missing = Vec::new();
    for segment in segments {
        unlink_shared(&segment.path)?;
        let from = local.get(&segment.entry.digest);
        let from = from.filter(|from| !is_suspect || is_intact(from, segment.entry, pull));
        pull.check_cancelled()?;
        if from.is_some_and(|from| try_link(from, &segment)) {
            pull.count_linked(segment.entry.size_bytes);
            linked.0.insert(segment.entry.file.clone());
        } else {
            missing.push(segment);
        }
    }
    Ok((missing, linked))
}

fn is_intact(path: &Path, entry: &SegmentEntry, pull: &Pull) -> bool {
    let mut digest = entry.begin_digest();
    let mut buffer = vec![0; 1 << 20];
    let Ok(mut file) = files::open_regular(path) else {
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
    if is_shared {
        std::fs::remove_file(path).map_err(Error::io("remove", path))
    } else {
        Ok(())
    }
}

/// Returns false if the file has been removed meanwhile, or if it cannot be linked; it is then fetched.
fn try_link(from: &Path, segment: &WantedSegment<'_>) -> bool {
    let is_complete = std::fs::metadata(from).is_ok_and(|it| it.len() == segment.entry.size_bytes);
    if !is_complete {
        return false;
    }
    let _ = std::fs::remove_file(&segment.path);
    match std::fs::hard_link(from, &segment.path) {
        Ok(()) => true,
        Err(error) => {
            tracing::info!(from = %from.display(), %error, "a local segment cannot be linked and is fetched");
            false
        }
    }
}
