//! The current subspaces of a space on a server.

use larder_client::Reply;

use super::info::{SpaceInfo, items, value};
use super::nodes::Nodes;
use crate::failure::Failure;

/// The layout, as returned by FT.INFO.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// In the syntax of the clause SUBSPACES: `city:4,price`.
    pub subspaces: Vec<String>,
    /// Maximum number of regions of each subspace.
    pub regions: u32,
    /// The attributes with local indexes.
    pub indexed: Vec<String>,
}

impl Layout {
    /// # Errors
    /// The space does not exist, or there was no reply.
    pub fn fetch(nodes: &Nodes, space: &str) -> Result<Layout, Failure> {
        let reply = nodes.text_command(&["FT.INFO", space]).map_err(|failure| {
            if failure.message.contains("Unknown index") {
                Failure::not_found(format!(
                    "there is no space {space:?}; `larder space list` shows those that there are"
                ))
            } else {
                failure
            }
        })?;
        let subspaces = value(&reply, "subspaces").map(items).unwrap_or_default();
        let regions = value(&reply, "regions").and_then(number);
        let regions = regions.and_then(|it| u32::try_from(it).ok());
        let indexed = SpaceInfo::read(&reply)?.definition;
        let indexed = indexed.indexed().map(|it| it.name.clone()).collect();
        Ok(Layout {
            indexed,
            subspaces: subspaces.iter().filter_map(text).collect(),
            regions: regions.ok_or_else(|| {
                Failure::new("FT.INFO does not return the number of regions of the space: run the same version of larder on the server")
            })?,
        })
    }
}

/// Reads a number from a reply of RESP2 or RESP3.
pub fn number(reply: &Reply) -> Option<u64> {
    match reply {
        Reply::Integer(number) => u64::try_from(*number).ok(),
        other => text(other)?.parse().ok(),
    }
}

pub fn text(reply: &Reply) -> Option<String> {
    match reply {
        Reply::Bulk(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Reply::Simple(text) => Some(text.clone()),
        _ => None,
    }
}
