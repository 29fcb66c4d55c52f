//! Locates missing layers of a delta: at the places that its manifest names, provided that the versions there are the ones that
//! the delta was built on.

use larder_batch::Manifest;
use larder_batch::version::{joined, joined_in_folder};
use larder_remote::Location;

use super::Pull;
use super::download::{Download, Root, Unfit, Wanted};
use crate::Shared;
use crate::error::Error;

/// Places for the missing layers, and the reasons for layers that are at none.
pub struct Below {
    pub roots: Vec<Root>,
    pub missing: Vec<String>,
}

/// Checks the places of the layers that are missing. `source` is the delta's location.
///
/// # Errors
/// [`Error::Cancelled`].
pub fn find(
    shared: &Shared,
    pull: &Pull,
    manifest: &Manifest,
    source: &str,
    wanted: &[Wanted<'_>],
) -> Result<Below, Error> {
    let mut below = Below {
        roots: Vec::new(),
        missing: Vec::new(),
    };
    let told = manifest.built.as_ref().map_or(&[][..], |built| &built.on);
    for (at, layer) in manifest.layers.iter().enumerate() {
        if !wanted.iter().any(|one| one.layer == at) {
            continue;
        }
        let Some(told) = told.get(at) else {
            let missing = "its manifest does not say where that was";
            below.missing.push(missing.to_owned());
            continue;
        };
        let mut missing = Vec::new();
        for place in places(source, told) {
            match root_at(shared, pull, &place, at, &layer.digest) {
                Ok(root) => {
                    below.roots.push(root);
                    missing.clear();
                    break;
                }
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Err(error) => missing.push(error.to_string()),
            }
        }
        below.missing.append(&mut missing);
    }
    Ok(below)
}

/// The candidate places of a layer that the delta at `source` names.
fn places(source: &str, told: &str) -> Vec<String> {
    let location = Location::parse(source).ok();
    match location.as_ref().and_then(Location::as_local) {
        Some(folder) => joined_in_folder(folder, told),
        None => vec![joined(source, told)],
    }
}

/// Returns the place if the version there has this digest.
fn root_at(
    shared: &Shared,
    pull: &Pull,
    place: &str,
    layer: usize,
    digest: &str,
) -> Result<Root, Error> {
    let root = Root {
        layer: Some(layer),
        ..Root::of_all(shared.pulls.locate(place)?)
    };
    let alone = Download {
        shared,
        pull,
        roots: std::slice::from_ref(&root),
    };
    // A delta on that layer may have the layer's files as well, like the folder of a server's version. Their contents are
    // verified during the fetch.
    let has = |found: &Manifest| {
        found.digest == digest || found.layers.iter().any(|layer| layer.digest == digest)
    };
    alone.manifest(&|found| {
        if has(found) {
            Ok(())
        } else {
            Err(Unfit::Other(format!(
                "is another one than the delta was built on: its digest is {}, not {digest}",
                found.digest
            )))
        }
    })?;
    Ok(root)
}

impl Below {
    /// Adds the reason to a fetch error if a layer is missing.
    pub fn explain(&self, error: Error) -> Error {
        match error {
            Error::Source { message, retry } if !self.missing.is_empty() => Error::Source {
                message: format!(
                    "this version is a delta, and a version below it is not on this server, nor where it was built ({}); push that one first, or build a whole version: {message}",
                    self.missing.join("; ")
                ),
                retry,
            },
            error => error,
        }
    }
}
