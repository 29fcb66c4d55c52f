//! Repairs messages of some versions of Polars (such as 1.12) that do not align the vector `variadicBufferCounts` to
//! 8 bytes.
//!
//! The flatbuffers library rejects such a message. This module copies the vector to an aligned position at the end of
//! the message and updates the offset that points to it. The result is verified like any other message.

use arrow_ipc::root_as_message;

/// Returns the message `head`, whose metadata begins at `prefix`, repaired if necessary and possible.
pub(super) fn with_aligned_counts(head: Vec<u8>, prefix: usize) -> Vec<u8> {
    let Some(metadata) = head.get(prefix..) else {
        return head;
    };
    if root_as_message(metadata).is_ok() {
        return head;
    }
    match repaired(metadata).filter(|it| root_as_message(it).is_ok()) {
        Some(metadata) => [&head[..prefix], &metadata].concat(),
        None => head,
    }
}

/// Field numbers in `Message.fbs`, from 0.
const MESSAGE_HEADER: usize = 2;
const DICTIONARY_DATA: usize = 1;
const BATCH_COUNTS: usize = 4;

fn repaired(metadata: &[u8]) -> Option<Vec<u8>> {
    let root = number(metadata, 0)?;
    let header = target(metadata, field(metadata, root, MESSAGE_HEADER)?)?;
    // A record batch, or one inside a dictionary batch.
    let counts = field(metadata, header, BATCH_COUNTS).or_else(|| {
        let batch = target(metadata, field(metadata, header, DICTIONARY_DATA)?)?;
        field(metadata, batch, BATCH_COUNTS)
    })?;
    let vector = target(metadata, counts)?;
    let bytes = number(metadata, vector)?.checked_mul(8)?.checked_add(4)?;
    let vector = metadata.get(vector..vector.checked_add(bytes)?)?;
    let mut out = metadata.to_vec();
    // The vector's length of 4 bytes precedes its aligned numbers.
    while out.len() % 8 != 4 {
        out.push(0);
    }
    let offset = u32::try_from(out.len() - counts).ok()?;
    out[counts..counts + 4].copy_from_slice(&offset.to_le_bytes());
    out.extend_from_slice(vector);
    Some(out)
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let number = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*number) as usize)
}

/// Returns the target of the offset at `at`.
fn target(bytes: &[u8], at: usize) -> Option<usize> {
    at.checked_add(number(bytes, at)?)
}

/// Returns the position of a field of the table at `table`, if it is present.
fn field(bytes: &[u8], table: usize, index: usize) -> Option<usize> {
    let back = i32::from_le_bytes(*bytes.get(table..)?.first_chunk()?);
    let layout = usize::try_from(i64::try_from(table).ok()? - i64::from(back)).ok()?;
    let short = |at: usize| {
        let number = bytes.get(at..)?.first_chunk()?;
        Some(usize::from(u16::from_le_bytes(*number)))
    };
    let place = 4 + 2 * index;
    let offset = short(layout)?
        .checked_sub(place + 2)
        .and_then(|_| short(layout + place))?;
    (offset > 0).then(|| table + offset)
}
