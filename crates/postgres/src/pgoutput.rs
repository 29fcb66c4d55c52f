//! Decodes the messages of PostgreSQL's output plugin `pgoutput` (protocol version 1, text format).
//!
//! The bytes come from the network: any input results in a message or an error.

use std::fmt;

use bytes::{Buf, Bytes};

/// The value of a column in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    Null,
    /// In PostgreSQL's output format.
    Text(Bytes),
    /// A large value that an update did not change, and that was not sent.
    Unchanged,
}

/// The description of a table, to which later messages refer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relation {
    pub oid: u32,
    pub schema: String,
    pub table: String,
    pub columns: Vec<RelationColumn>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelationColumn {
    pub name: String,
    /// Updates and deletes contain the column's previous value.
    pub is_identity: bool,
    pub type_oid: u32,
}

/// The previous row in an update or a delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Old {
    /// The key columns are the same as in the new row.
    Same,
    /// Only the columns of the replica identity.
    Key(Vec<Cell>),
    /// The complete row.
    Row(Vec<Cell>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    Relation(Relation),
    Insert {
        relation: u32,
        new: Vec<Cell>,
    },
    Update {
        relation: u32,
        old: Old,
        new: Vec<Cell>,
    },
    Delete {
        relation: u32,
        old: Old,
    },
    Truncate {
        relations: Vec<u32>,
    },
    /// A type's name or an origin, which do not affect rows.
    Other,
}

/// Bytes that are not a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(&'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "PostgreSQL's replication stream cannot be read: {}",
            self.0
        )
    }
}

/// Decodes one message.
///
/// # Errors
/// The message is truncated, or of an unexpected kind.
pub fn decode(mut bytes: Bytes) -> Result<Message, Malformed> {
    let bytes = &mut bytes;
    Ok(match byte(bytes)? {
        b'R' => {
            let oid = u32(bytes)?;
            let (schema, table) = (text(bytes)?, text(bytes)?);
            byte(bytes)?;
            let count = u16(bytes)?;
            let mut columns = Vec::with_capacity(usize::from(count.min(64)));
            for _ in 0..count {
                let is_identity = byte(bytes)? & 1 == 1;
                let name = text(bytes)?;
                let type_oid = u32(bytes)?;
                u32(bytes)?;
                columns.push(RelationColumn {
                    name,
                    is_identity,
                    type_oid,
                });
            }
            Message::Relation(Relation {
                oid,
                schema,
                table,
                columns,
            })
        }
        b'I' => {
            let relation = u32(bytes)?;
            expect_new(bytes)?;
            Message::Insert {
                relation,
                new: row(bytes)?,
            }
        }
        b'U' => {
            let relation = u32(bytes)?;
            let old = match byte(bytes)? {
                b'N' => Old::Same,
                tag => {
                    let old = old(tag, bytes)?;
                    expect_new(bytes)?;
                    old
                }
            };
            Message::Update {
                relation,
                old,
                new: row(bytes)?,
            }
        }
        b'D' => {
            let relation = u32(bytes)?;
            let tag = byte(bytes)?;
            Message::Delete {
                relation,
                old: old(tag, bytes)?,
            }
        }
        b'T' => {
            let count = u32(bytes)?;
            byte(bytes)?;
            let relations = (0..count).map(|_| u32(bytes));
            Message::Truncate {
                relations: relations.collect::<Result<_, _>>()?,
            }
        }
        b'Y' | b'O' => Message::Other,
        _ => return Err(Malformed("a message of an unknown kind")),
    })
}

fn old(tag: u8, bytes: &mut Bytes) -> Result<Old, Malformed> {
    match tag {
        b'K' => Ok(Old::Key(row(bytes)?)),
        b'O' => Ok(Old::Row(row(bytes)?)),
        _ => Err(Malformed("an old row of an unknown kind")),
    }
}

fn expect_new(bytes: &mut Bytes) -> Result<(), Malformed> {
    match byte(bytes)? {
        b'N' => Ok(()),
        _ => Err(Malformed("a new row of an unknown kind")),
    }
}

fn row(bytes: &mut Bytes) -> Result<Vec<Cell>, Malformed> {
    let count = u16(bytes)?;
    let mut cells = Vec::with_capacity(usize::from(count.min(64)));
    for _ in 0..count {
        cells.push(match byte(bytes)? {
            b'n' => Cell::Null,
            b'u' => Cell::Unchanged,
            b't' => {
                let len = u32(bytes)? as usize;
                if bytes.len() < len {
                    return Err(Malformed("a value is cut short"));
                }
                Cell::Text(bytes.split_to(len))
            }
            _ => return Err(Malformed("a value of an unknown kind")),
        });
    }
    Ok(cells)
}

const SHORT: Malformed = Malformed("a message is cut short");

fn byte(bytes: &mut Bytes) -> Result<u8, Malformed> {
    bytes.try_get_u8().map_err(|_| SHORT)
}

fn u16(bytes: &mut Bytes) -> Result<u16, Malformed> {
    bytes.try_get_u16().map_err(|_| SHORT)
}

fn u32(bytes: &mut Bytes) -> Result<u32, Malformed> {
    bytes.try_get_u32().map_err(|_| SHORT)
}

fn text(bytes: &mut Bytes) -> Result<String, Malformed> {
    let end = bytes.iter().position(|&byte| byte == 0).ok_or(SHORT)?;
    let text = bytes.split_to(end);
    bytes.advance(1);
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UPDATE: &[u8] =
        b"U\0\0\x40\x01K\0\x02t\0\0\0\x01an\0\0\0\0N\0\x03t\0\0\0\x02bbun\0\0\0\0";

    #[test]
    fn an_update_of_a_key_has_old_and_new_values() {
        let bytes = b"U\0\0\x40\x01K\0\x02t\0\0\0\x01anN\0\x03t\0\0\0\x02bbun";
        let text = |text: &'static str| Cell::Text(Bytes::from_static(text.as_bytes()));
        assert_eq!(
            decode(Bytes::from_static(bytes)),
            Ok(Message::Update {
                relation: 0x4001,
                old: Old::Key(vec![text("a"), Cell::Null]),
                new: vec![text("bb"), Cell::Unchanged, Cell::Null],
            })
        );
    }

    #[test]
    fn truncated_messages_are_errors() {
        for end in 0..24 {
            assert!(decode(Bytes::from_static(&UPDATE[..end])).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200), tag in 0usize..8) {
            let mut bytes = bytes;
            bytes.insert(0, b"RIUDTYOX"[tag]);
            let _ = decode(Bytes::from(bytes));
        }
    }
}
