//! Where the layers below a delta may be had, of which this server has not all: at the places that its manifest tells, if the
//! versions there are those that it was built on.

use larder_batch::Manifest;
use larder_batch::version::joined;

use super::Pull;
use super::download::{Download, Root, Wanted};
use crate::Shared;
use crate::error::Error;

/// Places for what is wanted of layers below, and, of layers that are at none, why.
pub struct Below {
    pub roots: Vec<Root>,
    pub missing: Vec<String>,
}

/// Asks the places of the layers of which something is wanted. `source` is where the delta is.
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
        let place = match shared.pulls.locate(&joined(source, told)) {
            Ok(place) => place,
            Err(error) => {
                below.missing.push(error.to_string());
                continue;
            }
        };
        let root = Root {
            layer: Some(at),
            ..Root::of_all(place)
        };
        let alone = Download {
            shared,
            pull,
            roots: std::slice::from_ref(&root),
        };
        let found = alone.manifest(&|found| match found.digest == layer.digest {
            true => Ok(()),
            false => Err(format!(
                "is another one than the delta was built on: its digest is {}, not {}",
                found.digest, layer.digest
            )),
        });
        match found {
            Ok(_) => below.roots.push(root),
            Err(Error::Cancelled) => return Err(Error::Cancelled),
            Err(error) => below.missing.push(error.to_string()),
        }
    }
    Ok(below)
}

impl Below {
    /// An error of a fetch, with what it is about if a layer is missing.
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
