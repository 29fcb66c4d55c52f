//! How two nodes greet each other, and whom a node refuses.

use larder_types::wire::{Malformed, WireReader};

use super::frame::{put_text, text};
use crate::map::{Epoch, Incarnation, NodeId};

/// The format of frames. Nodes of two formats refuse each other.
pub const FORMAT: u32 = 1;

const NAME_BYTES_MAX: usize = 255;

/// What the side that connects says first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// If it is another than [`FORMAT`] nothing else is known of it.
    pub format: u32,
    pub cluster: String,
    /// Whom it wants to speak to.
    pub receiver: NodeId,
    pub from: Peer,
}

/// What the side that accepts says first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// As in [`Hello`].
    pub format: u32,
    pub from: Peer,
}

/// What each side says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Peer {
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub core: u16,
    /// Of the map that it has.
    pub epoch: Epoch,
    /// For how long it trusts rows of the other after a ping that was answered, counted from when it was sent.
    pub lease_ms: u64,
    /// How many streams of the other it answers at a time.
    pub streams_max: u32,
    /// How many pieces of an answer it may be sent that it has not taken.
    pub pieces_max: u32,
}

impl Hello {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.format.to_le_bytes());
        put_text(out, &self.cluster);
        out.extend_from_slice(&self.receiver.0.to_le_bytes());
        self.from.put(out);
    }

    pub(super) fn take(bytes: &mut WireReader<'_>) -> Result<Hello, Malformed> {
        let format = bytes.u32()?;
        if format != FORMAT {
            skip(bytes);
            return Ok(Hello {
                format,
                cluster: String::new(),
                receiver: NodeId::default(),
                from: Peer::default(),
            });
        }
        Ok(Hello {
            format,
            cluster: text(bytes.bytes()?, NAME_BYTES_MAX)?.to_owned(),
            receiver: NodeId(bytes.u32()?),
            from: Peer::take(bytes)?,
        })
    }
}

impl Welcome {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.format.to_le_bytes());
        self.from.put(out);
    }

    pub(super) fn take(bytes: &mut WireReader<'_>) -> Result<Welcome, Malformed> {
        let format = bytes.u32()?;
        if format != FORMAT {
            skip(bytes);
            let from = Peer::default();
            return Ok(Welcome { format, from });
        }
        let from = Peer::take(bytes)?;
        Ok(Welcome { format, from })
    }
}

/// Another format: what follows is not ours to understand.
fn skip(bytes: &mut WireReader<'_>) {
    *bytes = WireReader::new(&[]);
}

impl Peer {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.node.0.to_le_bytes());
        out.extend_from_slice(&self.incarnation.0.to_le_bytes());
        out.extend_from_slice(&self.core.to_le_bytes());
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        out.extend_from_slice(&self.lease_ms.to_le_bytes());
        out.extend_from_slice(&self.streams_max.to_le_bytes());
        out.extend_from_slice(&self.pieces_max.to_le_bytes());
    }

    fn take(bytes: &mut WireReader<'_>) -> Result<Peer, Malformed> {
        let peer = Peer {
            node: NodeId(bytes.u32()?),
            incarnation: Incarnation(bytes.u64()?),
            core: bytes.u16()?,
            epoch: Epoch(bytes.u64()?),
            lease_ms: bytes.u64()?,
            streams_max: bytes.u32()?,
            pieces_max: bytes.u32()?,
        };
        match peer.streams_max > 0 && peer.pieces_max > 0 {
            true => Ok(peer),
            false => Err(Malformed("a node takes no streams, or no pieces")),
        }
    }
}

/// Why nobody of this format is spoken to.
pub(super) fn check_format(theirs: u32) -> Result<(), String> {
    match theirs {
        FORMAT => Ok(()),
        _ if theirs < FORMAT => Err(format!(
            "your frames have format {theirs}, and this node speaks format {FORMAT}: bring your larder to this node's version"
        )),
        _ => Err(format!(
            "your frames have format {theirs}, and this node speaks format {FORMAT}: bring this node's larder to your version first"
        )),
    }
}

/// Why a hello is refused whoever it is from, for the sender's people. `me` is who is asked.
pub(super) fn check_hello(hello: &Hello, cluster: &str, me: NodeId) -> Result<(), String> {
    check_format(hello.format)?;
    if hello.cluster != cluster {
        return Err(format!(
            "this node is of the cluster {cluster:?}, and you are of {:?}: one of the two has a wrong cluster.name or address",
            hello.cluster
        ));
    }
    if hello.receiver != me {
        return Err(format!(
            "you look for node {}, and this is node {me}: two nodes have had the same address; the next map will tell",
            hello.receiver
        ));
    }
    match hello.from.node == me {
        true => Err(format!("you say that you are node {me}, which I am")),
        false => Ok(()),
    }
}

/// Why a node of this life is refused by one whose map has the node in the life `known`. A later life than is known has
/// registered, and the map will tell.
pub(super) fn check_life(
    from: &Peer,
    known: Option<Incarnation>,
    epoch: Epoch,
) -> Result<(), String> {
    match known {
        None => Err(format!(
            "node {} is no member in the map of epoch {epoch}; if it has just joined, a later try will do",
            from.node
        )),
        Some(known) if from.incarnation < known => Err(format!(
            "node {} has begun a later life ({known}) than yours ({}): end this process if the other is right",
            from.node, from.incarnation
        )),
        Some(_) => Ok(()),
    }
}
