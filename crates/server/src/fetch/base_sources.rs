//! Locates missing layers of a delta: at the places that its manifest names, provided that the versions there are the ones that
//! the delta was built on.

use larder_batch::Manifest;
use larder_batch::version::{resolve_in_folder, resolve_place};
use larder_remote::Location;

use super::Pull;
use super::download::{Download, Mismatch, Root, WantedSegment};
use crate::Shared;
use crate::error::Error;

/// Places for the missing layers, and the reasons for layers that are at none.
pub struct BaseSources {
    pub roots: Vec<Root>,
    pub missing: Vec<String>,
}

/// Checks the places of the layers that are missing. `source` is the delta's location.
///
/// # Errors
/// [`Error::Cancelled`].
pub fn find_base_sources(
    shared: &Shared,
    pull: &Pull,
    manifest: &Manifest,
    source: &str,
    segments: &[WantedSegment<'_>],
) -> Result<BaseSources, Error> {
    let mut bases = BaseSources {
        roots: Vec::new(),
        missing: Vec::new(),
    };
    let built_on = manifest.built.as_ref().map_or(&[][..], |built| &built.on);
    for (at, layer) in manifest.layers.iter().enumerate() {
        if !segments.iter().any(|segment| segment.layer == at) {
            continue;
        }
        let Some(built_on) = built_on.get(at) else {
            let missing = "the manifest does not name the location of the base";
            bases.missing.push(missing.to_owned());
            continue;
        };
        let mut missing = Vec::new();
        for place in resolve_base(source, built_on) {
            match open_base(shared, pull, &place, at, &layer.digest) {
                Ok(root) => {
                    bases.roots.push(root);
                    missing.clear();
                    break;
                }
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Err(error) => missing.push(error.to_string()),
            }
        }
        bases.missing.append(&mut missing);
    }
    Ok(bases)
}

/// The candidate places of a layer that the delta at `source` names.
fn resolve_base(source: &str, built_on: &str) -> Vec<String> {
    let location = Location::parse(source).ok();
    match location.as_ref().and_then(Location::as_local) {
        Some(folder) => resolve_in_folder(folder, built_on),
        None => vec![resolve_place(source, built_on)],
    }
}

/// Returns the place if the version there has this digest.
fn open_base(
    shared: &Shared,
    pull: &Pull,
    place: &str,
    layer: usize,
    digest: &str,
) -> Result<Root, Error> {
    let root = Root {
        layer: Some(layer),
        ..Root::for_all_slots(shared.pulls.locate(place)?)
    };
    let download = Download {
        shared,
        pull,
        roots: std::slice::from_ref(&root),
    };
    // A delta on that layer may have the layer's files as well, like the folder of a server's version. Their contents are
    // verified during the fetch.
    let contains_base = |found: &Manifest| {
        found.digest == digest || found.layers.iter().any(|layer| layer.digest == digest)
    };
    download.fetch_manifest(&|found| {
        if contains_base(found) {
            Ok(())
        } else {
            Err(Mismatch::Other(format!(
                "is not the version that the delta was built on: its digest is {}, not {digest}",
                found.digest
            )))
        }
    })?;
    Ok(root)
}

impl BaseSources {
    /// Adds the reason to a fetch error if a layer is missing.
    pub fn explain(&self, error: Error) -> Error {
        match error {
            Error::Source { message, retry } if !self.missing.is_empty() => Error::Source {
                message: format!(
                    "this version is a delta, and its base is neither on this server nor where it was built ({}); push the base first, or build a complete version: {message}",
                    self.missing.join("; ")
                ),
                retry,
            },
            error => error,
        }
    }
}
