//! MongoDB's wire protocol: a command is one document in an OP_MSG, and so is its reply.
//!
//! | offset | size | |
//! |---|---|---|
//! | 0 | 4 | size of the message |
//! | 4 | 4 | number of the request |
//! | 8 | 4 | in a reply: the number of its request |
//! | 12 | 4 | 2013 |
//! | 16 | 4 | flags: none are sent, and the checksum of a reply is not requested |
//! | 20 | 1 | 0: a document follows |
//! | 21 | | the document |
//!
//! All numbers are little-endian. The official driver requires sessions and `hello`, which not every server with this
//! protocol has. The five commands used here require neither.

use std::cell::Cell;

use bson::RawDocumentBuf;
use bson::raw::{RawBsonRef, RawDocument};
use bytes::Bytes;

use crate::stores::contract::Failure;
use crate::stores::links::Links;
use crate::stores::pipe::{Framing, Pipe};

const OP_MSG: u32 = 2013;
const HEADER_SIZE: usize = 21;

/// The connections to one server.
pub struct Wire {
    address: String,
    links: Links<Pipe<Message>>,
    last_request: Cell<u32>,
}

/// The reply to a command.
pub struct CommandReply(Bytes);

impl CommandReply {
    pub fn document(&self) -> &RawDocument {
        RawDocument::from_bytes(&self.0[HEADER_SIZE..]).expect("validated on receipt")
    }
}

impl Wire {
    pub async fn connect(address: &str, connections: usize) -> Result<Wire, Failure> {
        let wire = Wire {
            address: address.to_owned(),
            links: Links::new(connections),
            last_request: Cell::new(0),
        };
        wire.links.open_all(|| Pipe::open(&wire.address)).await?;
        Ok(wire)
    }

    /// Executes a command.
    ///
    /// # Errors
    ///
    /// The error that the server returned, for the command or for one of several writes.
    pub async fn command(&self, command: &RawDocument) -> Result<CommandReply, Failure> {
        let number = self.last_request.get().wrapping_add(1);
        self.last_request.set(number);
        let link = self.links.acquire(|| Pipe::open(&self.address)).await?;
        let reply = link.call(|out| {
            let body = command.as_bytes();
            let size = (HEADER_SIZE + body.len()) as u32;
            for word in [size, number, 0, OP_MSG, 0] {
                out.extend_from_slice(&word.to_le_bytes());
            }
            out.push(0);
            out.extend_from_slice(body);
        });
        let answer = CommandReply(reply.await?);
        let invalid = |why: &str| Failure::Unknown(format!("invalid reply: {why}"));
        let bytes = &answer.0;
        if bytes.len() < HEADER_SIZE || word(bytes, 12) != OP_MSG || bytes[20] != 0 {
            return Err(invalid("it is not an OP_MSG document"));
        }
        if word(bytes, 8) != number {
            return Err(invalid("it belongs to another request"));
        }
        let document = RawDocument::from_bytes(&bytes[HEADER_SIZE..]);
        let document = document.map_err(|error| invalid(&error.to_string()))?;
        if let Some(failure) = failure_of(document) {
            if is_demoted(document) {
                link.fail("the server is no longer the primary");
            }
            return Err(failure);
        }
        Ok(answer)
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word: [u8; 4] = bytes[at..at + 4].try_into().expect("four bytes");
    u32::from_le_bytes(word)
}

/// Returns the failure if the command was not executed, or possibly not.
fn failure_of(answer: &RawDocument) -> Option<Failure> {
    let failure = |of: &RawDocument| {
        let why = text(of, "errmsg").unwrap_or("no reason").to_owned();
        let code = number(of, "code").unwrap_or_default();
        if UNCERTAIN_CODES.contains(&code) {
            Failure::Unknown(format!("{why} ({code})"))
        } else {
            Failure::Refused(format!("{why} ({code})"))
        }
    };
    if number(answer, "ok") != Some(1) {
        return Some(failure(answer));
    }
    if let Ok(errors) = answer.get_array("writeErrors")
        && let Ok(error) = errors.get_document(0)
    {
        return Some(failure(error));
    }
    // The write was executed, but not with the requested durability.
    let concern = answer.get_document("writeConcernError").ok()?;
    let why = text(concern, "errmsg").unwrap_or_default();
    Some(Failure::Unknown(why.to_owned()))
}

/// Returns whether the server was the primary before a failover. The address may now lead to another server.
fn is_demoted(answer: &RawDocument) -> bool {
    let code = number(answer, "code").unwrap_or_default();
    number(answer, "ok") != Some(1) && NOT_PRIMARY_CODES.contains(&code)
}

/// NotWritablePrimary, NotPrimaryNoSecondaryOk, the older code for both, PrimarySteppedDown.
const NOT_PRIMARY_CODES: [u64; 4] = [10107, 13435, 10058, 189];

/// Errors after which the command may have been executed: interrupted, shut down, stepped down, timed out.
const UNCERTAIN_CODES: [u64; 8] = [50, 64, 91, 189, 262, 11600, 11601, 11602];

/// The end of an error message for a duplicate `_id`.
pub const DUPLICATE: &str = "(11000)";

/// Returns a number of any type.
pub fn number(of: &RawDocument, key: &str) -> Option<u64> {
    as_number(of.get(key).ok()??)
}

pub fn as_number(value: RawBsonRef<'_>) -> Option<u64> {
    match value {
        RawBsonRef::Int32(number) => u64::try_from(number).ok(),
        RawBsonRef::Int64(number) => u64::try_from(number).ok(),
        RawBsonRef::Double(number) => Some(number as u64),
        _ => None,
    }
}

pub fn text<'a>(of: &'a RawDocument, key: &str) -> Option<&'a str> {
    of.get_str(key).ok()
}

/// Returns the numbers in an array; empty if there is none.
pub fn numbers(of: &RawDocument, key: &str) -> Vec<u32> {
    let Ok(array) = of.get_array(key) else {
        return Vec::new();
    };
    array
        .into_iter()
        .filter_map(|value| Some(as_number(value.ok()?)? as u32))
        .collect()
}

/// Calls `each` with the documents of a `find`, in order, batch by batch.
pub async fn find(
    wire: &Wire,
    database: &str,
    collection: &str,
    command: &RawDocument,
    mut each: impl FnMut(&RawDocument),
) -> Result<(), Failure> {
    let mut answer = wire.command(command).await?;
    loop {
        let invalid = || Failure::Unknown("invalid reply: it has no cursor".to_owned());
        let id = {
            let cursor = answer.document().get_document("cursor");
            let cursor = cursor.map_err(|_| invalid())?;
            let batch = cursor
                .get_array("firstBatch")
                .or(cursor.get_array("nextBatch"));
            for found in batch.map_err(|_| invalid())? {
                let found = found.map_err(|_| invalid())?;
                each(found.as_document().ok_or_else(invalid)?);
            }
            number(cursor, "id").ok_or_else(invalid)? as i64
        };
        if id == 0 {
            return Ok(());
        }
        let mut more = RawDocumentBuf::new();
        more.append(bson::raw::cstr!("getMore"), id);
        more.append(bson::raw::cstr!("collection"), collection);
        more.append(bson::raw::cstr!("$db"), database);
        answer = wire.command(&more).await?;
    }
}

struct Message;

impl Framing for Message {
    fn size(bytes: &[u8]) -> Result<Option<usize>, String> {
        if bytes.len() < 4 {
            return Ok(None);
        }
        let size = word(bytes, 0) as usize;
        if size < HEADER_SIZE - 5 {
            Err(format!("invalid message size {size}"))
        } else {
            Ok(Some(size))
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn rejections_and_uncertain_outcomes_are_distinguished() {
        assert_eq!(failure_of(&rawdoc! { "ok": 1.0, "n": 1 }), None);
        let refused =
            |document: RawDocumentBuf| matches!(failure_of(&document), Some(Failure::Refused(_)));
        assert!(refused(rawdoc! { "ok": 0.0, "errmsg": "no", "code": 59 }));
        let twice =
            rawdoc! { "ok": 1, "n": 0, "writeErrors": [{ "code": 11000, "errmsg": "twice" }] };
        assert!(refused(twice));
        assert!(!refused(
            rawdoc! { "ok": 0.0, "errmsg": "gone", "code": 11600 }
        ));
        let unsure =
            rawdoc! { "ok": 1, "n": 1, "writeConcernError": { "code": 64, "errmsg": "late" } };
        assert_eq!(
            failure_of(&unsure),
            Some(Failure::Unknown("late".to_owned()))
        );
        assert!(refused(rawdoc! {}));
    }

    #[test]
    fn a_demoted_primary_is_recognized() {
        assert!(is_demoted(
            &rawdoc! { "ok": 0.0, "errmsg": "not primary", "code": 10107 }
        ));
        assert!(!is_demoted(
            &rawdoc! { "ok": 0.0, "errmsg": "no", "code": 59 }
        ));
        assert!(!is_demoted(&rawdoc! { "ok": 1.0, "n": 1 }));
    }

    #[test]
    fn a_message_starts_with_its_size() {
        assert_eq!(Message::size(&[9, 0, 0]), Ok(None));
        assert_eq!(Message::size(&[44, 1, 0, 0, 7]), Ok(Some(300)));
        assert!(Message::size(&[3, 0, 0, 0]).is_err());
    }
}
