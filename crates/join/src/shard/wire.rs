//! The encoding of messages between engines of different processes.
//!
//! A message is a kind (1 byte), followed by its fields in the order of [`EngineMessage`]. `larder_types::wire` defines
//! the encoding of numbers and strings.

use std::collections::VecDeque;

use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use crate::base::key_range::KeyRange;
use crate::shard::exchange::EngineMessage;

const REQUEST: u8 = 1;
const UNSUBSCRIBE: u8 = 2;
const SUPPLY: u8 = 3;
const CHANGES: u8 = 4;
const ACK: u8 = 5;
const PROCESSED: u8 = 6;
const WITHDRAW: u8 = 7;
const EPOCH_TOO_OLD: u8 = 8;
const REQUEST_PART: u8 = 9;
const END_PART: u8 = 10;
const SUPPLY_PART: u8 = 11;

/// Minimum size of a row: the lengths of its key and value.
const ROW_BYTES_MIN: usize = 8;
/// Minimum size of a change: the length of its key, and whether there is a value.
const CHANGE_BYTES_MIN: usize = 5;
/// Two slots.
const SLOTS_BYTES: usize = 4;

impl EngineMessage {
    /// Appends the encoded message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            EngineMessage::Request { range, epoch } => {
                out.push(REQUEST);
                put_range(out, range);
                out.extend_from_slice(&epoch.to_le_bytes());
            }
            EngineMessage::Unsubscribe(range) => {
                out.push(UNSUBSCRIBE);
                put_range(out, range);
            }
            EngineMessage::Supply { range, rows, epoch } => {
                out.push(SUPPLY);
                put_range(out, range);
                put_rows(out, rows);
                out.extend_from_slice(&epoch.to_le_bytes());
            }
            EngineMessage::RequestPart {
                number,
                part,
                epoch,
            } => {
                out.push(REQUEST_PART);
                out.extend_from_slice(&number.to_le_bytes());
                put_bytes(out, part);
                out.extend_from_slice(&epoch.to_le_bytes());
            }
            EngineMessage::EndPart(number) => {
                out.push(END_PART);
                out.extend_from_slice(&number.to_le_bytes());
            }
            EngineMessage::SupplyPart {
                number,
                part,
                rows,
                is_last,
                epoch,
            } => {
                out.push(SUPPLY_PART);
                out.extend_from_slice(&number.to_le_bytes());
                put_bytes(out, part);
                put_rows(out, rows);
                out.push(u8::from(*is_last));
                out.extend_from_slice(&epoch.to_le_bytes());
            }
            EngineMessage::Changes {
                rows,
                mark,
                atomic: whole,
            } => {
                out.push(CHANGES);
                put_count(out, rows.len());
                for (key, value) in rows {
                    put_bytes(out, key);
                    out.push(u8::from(value.is_some()));
                    if let Some(value) = value {
                        put_bytes(out, value);
                    }
                }
                out.extend_from_slice(&mark.to_le_bytes());
                out.push(u8::from(*whole));
            }
            EngineMessage::Withdraw { slots, mark } => {
                out.push(WITHDRAW);
                put_count(out, slots.len());
                for (lo, hi) in slots {
                    out.extend_from_slice(&lo.to_le_bytes());
                    out.extend_from_slice(&hi.to_le_bytes());
                }
                out.extend_from_slice(&mark.to_le_bytes());
            }
            EngineMessage::EpochTooOld(epoch) => {
                out.push(EPOCH_TOO_OLD);
                out.extend_from_slice(&epoch.to_le_bytes());
            }
            EngineMessage::Ack(mark) => {
                out.push(ACK);
                out.extend_from_slice(&mark.to_le_bytes());
            }
            EngineMessage::Processed => out.push(PROCESSED),
        }
    }

    /// Decodes one message.
    ///
    /// # Errors
    /// The bytes are not a valid message.
    pub fn decode(bytes: &mut WireReader<'_>) -> Result<EngineMessage, Malformed> {
        Ok(match bytes.u8()? {
            REQUEST => EngineMessage::Request {
                range: range(bytes)?,
                epoch: bytes.u64()?,
            },
            UNSUBSCRIBE => EngineMessage::Unsubscribe(range(bytes)?),
            SUPPLY => {
                let range = range(bytes)?;
                let rows = rows(bytes)?;
                let epoch = bytes.u64()?;
                EngineMessage::Supply { range, rows, epoch }
            }
            CHANGES => {
                let count = bytes.count(CHANGE_BYTES_MIN)?;
                let change = |_| {
                    let key = bytes.bytes()?.into();
                    let value = if bytes.flag()? {
                        Some(bytes.bytes()?.into())
                    } else {
                        None
                    };
                    Ok((key, value))
                };
                let rows = (0..count)
                    .map(change)
                    .collect::<Result<VecDeque<_>, Malformed>>()?;
                EngineMessage::Changes {
                    rows,
                    mark: bytes.u64()?,
                    atomic: bytes.flag()?,
                }
            }
            WITHDRAW => {
                let count = bytes.count(SLOTS_BYTES)?;
                let run = |_| Ok((bytes.u16()?, bytes.u16()?));
                let slots = (0..count).map(run).collect::<Result<_, Malformed>>()?;
                EngineMessage::Withdraw {
                    slots,
                    mark: bytes.u64()?,
                }
            }
            EPOCH_TOO_OLD => EngineMessage::EpochTooOld(bytes.u64()?),
            REQUEST_PART => EngineMessage::RequestPart {
                number: bytes.u32()?,
                part: bytes.bytes()?.into(),
                epoch: bytes.u64()?,
            },
            END_PART => EngineMessage::EndPart(bytes.u32()?),
            SUPPLY_PART => EngineMessage::SupplyPart {
                number: bytes.u32()?,
                part: bytes.bytes()?.into(),
                rows: rows(bytes)?,
                is_last: bytes.flag()?,
                epoch: bytes.u64()?,
            },
            ACK => EngineMessage::Ack(bytes.u64()?),
            PROCESSED => EngineMessage::Processed,
            _ => {
                return Err(Malformed("an engine message has an unknown kind"));
            }
        })
    }
}

/// A key and its value.
type Row = (Box<[u8]>, Box<[u8]>);

fn put_rows(out: &mut Vec<u8>, rows: &[Row]) {
    put_count(out, rows.len());
    for (key, value) in rows {
        put_bytes(out, key);
        put_bytes(out, value);
    }
}

fn rows(bytes: &mut WireReader<'_>) -> Result<Vec<Row>, Malformed> {
    let count = bytes.count(ROW_BYTES_MIN)?;
    let row = |_| Ok((bytes.bytes()?.into(), bytes.bytes()?.into()));
    (0..count).map(row).collect()
}

fn put_range(out: &mut Vec<u8>, range: &KeyRange) {
    put_bytes(out, &range.lo);
    put_bytes(out, &range.hi);
}

fn range(bytes: &mut WireReader<'_>) -> Result<KeyRange, Malformed> {
    let (lo, hi) = (bytes.bytes()?, bytes.bytes()?);
    Ok(KeyRange::new(lo, hi))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_truncated_ones_are_rejected() {
        let range = KeyRange::new(b"post|bob|", b"post|bob}");
        let row = |key: &str, value: &str| (key.as_bytes().into(), value.as_bytes().into());
        let messages = [
            EngineMessage::Request {
                range: range.clone(),
                epoch: 3,
            },
            EngineMessage::Unsubscribe(range.clone()),
            EngineMessage::Supply {
                range,
                rows: vec![row("post|bob|1", "hello"), row("post|bob|2", "")],
                epoch: u64::MAX,
            },
            EngineMessage::Changes {
                rows: [
                    (b"a|1"[..].into(), Some(b""[..].into())),
                    (b"a|2"[..].into(), None),
                ]
                .into(),
                mark: 7,
                atomic: true,
            },
            EngineMessage::Withdraw {
                slots: vec![(0, 7), (16_383, 16_383)],
                mark: 8,
            },
            EngineMessage::EpochTooOld(4),
            EngineMessage::RequestPart {
                number: 3,
                part: b"any"[..].into(),
                epoch: 5,
            },
            EngineMessage::EndPart(3),
            EngineMessage::SupplyPart {
                number: 3,
                part: b"any"[..].into(),
                rows: vec![row("hotel:7", "x")],
                is_last: true,
                epoch: 5,
            },
            EngineMessage::Ack(9),
            EngineMessage::Processed,
        ];
        let mut bytes = Vec::new();
        messages
            .iter()
            .for_each(|message| message.encode(&mut bytes));
        let mut reader = WireReader::new(&bytes);
        for message in &messages {
            assert_eq!(EngineMessage::decode(&mut reader).as_ref(), Ok(message));
        }
        reader.end().expect("no bytes are left");
        for message in &messages {
            let mut one = Vec::new();
            message.encode(&mut one);
            for cut in 0..one.len() {
                EngineMessage::decode(&mut WireReader::new(&one[..cut]))
                    .expect_err("truncated input");
            }
        }
    }
}
