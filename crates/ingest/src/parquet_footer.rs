//! Parquet footers with fields that the format does not have.
//!
//! Thrift tells readers to pass over a field whose type is not the expected one. The parquet crate reads it as the expected type, and
//! then finds no sense in what follows. Some writers put fields of their own under numbers that the format took later: Dremio writes
//! page headers as field 15 of a column's metadata, which is `bloom_filter_length` now.

/// The types of Thrift's compact protocol, as in the header of a field.
mod kind {
    pub const TRUE: u8 = 1;
    pub const FALSE: u8 = 2;
    pub const BYTE: u8 = 3;
    pub const I16: u8 = 4;
    pub const I32: u8 = 5;
    pub const I64: u8 = 6;
    pub const DOUBLE: u8 = 7;
    pub const BINARY: u8 = 8;
    pub const LIST: u8 = 9;
    pub const SET: u8 = 10;
    pub const MAP: u8 = 11;
    pub const STRUCT: u8 = 12;
    pub const UUID: u8 = 13;
}

/// A struct of parquet.thrift: for each number, from 1 on, a type, and of a struct or a list of structs what these hold, if fields of
/// theirs are to be left out as well.
struct Shape(&'static [(u8, Option<&'static Shape>)]);

use kind::{BINARY, I16, I32, I64, LIST, STRUCT};

const FILE: Shape = Shape(&[
    (I32, None),
    (LIST, None),
    (I64, None),
    (LIST, Some(&ROW_GROUP)),
    (LIST, None),
    (BINARY, None),
    (LIST, None),
    (STRUCT, None),
    (BINARY, None),
]);

const ROW_GROUP: Shape = Shape(&[
    (LIST, Some(&COLUMN)),
    (I64, None),
    (I64, None),
    (LIST, None),
    (I64, None),
    (I64, None),
    (I16, None),
]);

const COLUMN: Shape = Shape(&[
    (BINARY, None),
    (I64, None),
    (STRUCT, Some(&COLUMN_METADATA)),
    (I64, None),
    (I32, None),
    (I64, None),
    (I32, None),
    (STRUCT, None),
    (BINARY, None),
]);

const COLUMN_METADATA: Shape = Shape(&[
    (I32, None),
    (LIST, None),
    (LIST, None),
    (I32, None),
    (I64, None),
    (I64, None),
    (I64, None),
    (LIST, None),
    (I64, None),
    (I64, None),
    (I64, None),
    (STRUCT, None),
    (LIST, None),
    (I64, None),
    (I32, None),
    (STRUCT, None),
    (STRUCT, None),
]);

/// The footer without the fields that the format does not have; `None` if it is not Thrift.
pub fn known_fields(footer: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(footer.len());
    copy_struct(&mut &footer[..], &mut out, &FILE)?;
    Some(out)
}

fn copy_struct(rest: &mut &[u8], out: &mut Vec<u8>, shape: &Shape) -> Option<()> {
    let (mut read, mut written) = (0, 0);
    while let Some((number, kind)) = field(rest, read)? {
        read = number;
        let begin = *rest;
        pass_over(rest, kind, DEPTH_MAX)?;
        let place = usize::try_from(number)
            .ok()
            .and_then(|it| it.checked_sub(1));
        let Some((_, inner)) = place
            .and_then(|place| shape.0.get(place))
            .filter(|known| known.0 == kind)
        else {
            continue;
        };
        // Numbers of known fields are small, and ascend in all that is written so; other orders are not repaired.
        let step = u8::try_from(number.checked_sub(written)?).ok()?;
        if !(1..16).contains(&step) {
            return None;
        }
        written = number;
        out.push(step << 4 | kind);
        let mut value = &begin[..begin.len() - rest.len()];
        match inner {
            None => out.extend_from_slice(value),
            Some(inner) if kind == STRUCT => copy_struct(&mut value, out, inner)?,
            Some(inner) => {
                let header = value;
                let (count, of) = list(&mut value)?;
                out.extend_from_slice(&header[..header.len() - value.len()]);
                if of != STRUCT {
                    return None;
                }
                for _ in 0..count {
                    copy_struct(&mut value, out, inner)?;
                }
            }
        }
    }
    out.push(0);
    Some(())
}

/// The number and the type of a struct's next field, after the field `before`; `Some(None)` at its end.
fn field(rest: &mut &[u8], before: i16) -> Option<Option<(i16, u8)>> {
    let header = byte(rest)?;
    if header == 0 {
        return Some(None);
    }
    let number = match header >> 4 {
        0 => {
            let coded = u16::try_from(varint(rest)?).ok()?;
            (coded >> 1) as i16 ^ -((coded & 1) as i16)
        }
        step => before.checked_add(i16::from(step))?,
    };
    Some(Some((number, header & 15)))
}

/// The number of a list's elements, and their type.
fn list(rest: &mut &[u8]) -> Option<(u64, u8)> {
    let header = byte(rest)?;
    let count = match header >> 4 {
        15 => varint(rest)?,
        few => u64::from(few),
    };
    Some((count, header & 15))
}

/// Structs within structs that are passed over: more than any footer has.
const DEPTH_MAX: u32 = 32;

/// Passes over the value of a field.
fn pass_over(rest: &mut &[u8], kind: u8, depth: u32) -> Option<()> {
    match kind {
        // Their value is in the header.
        kind::TRUE | kind::FALSE => Some(()),
        _ => pass_over_element(rest, kind, depth),
    }
}

/// Passes over an element of a list, which has at least a byte.
fn pass_over_element(rest: &mut &[u8], kind: u8, depth: u32) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    match kind {
        kind::TRUE | kind::FALSE | kind::BYTE => skip(rest, 1),
        I16 | I32 | I64 => varint(rest).map(drop),
        kind::DOUBLE => skip(rest, 8),
        kind::UUID => skip(rest, 16),
        BINARY => {
            let size = varint(rest)?;
            skip(rest, size)
        }
        LIST | kind::SET => {
            let (count, of) = list(rest)?;
            (0..count).try_for_each(|_| pass_over_element(rest, of, depth))
        }
        kind::MAP => {
            let count = varint(rest)?;
            if count == 0 {
                return Some(());
            }
            let of = byte(rest)?;
            (0..count).try_for_each(|_| {
                pass_over_element(rest, of >> 4, depth)?;
                pass_over_element(rest, of & 15, depth)
            })
        }
        STRUCT => {
            let mut read = 0;
            while let Some((number, kind)) = field(rest, read)? {
                read = number;
                pass_over(rest, kind, depth)?;
            }
            Some(())
        }
        _ => None,
    }
}

fn byte(rest: &mut &[u8]) -> Option<u8> {
    let (first, after) = rest.split_first()?;
    *rest = after;
    Some(*first)
}

fn skip(rest: &mut &[u8], size: u64) -> Option<()> {
    *rest = rest.get(usize::try_from(size).ok()?..)?;
    Some(())
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let next = byte(rest)?;
        number |= u64::from(next & 0x7f) << shift;
        if next < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_another_type_is_left_out_and_the_next_is_kept() {
        // Version 1, a list as field 3 instead of rows, text as field 6, a field 20 of the writer's own.
        let footer = [0x15, 2, 0x29, 0x1c, 0x15, 9, 0, 0x38, 1, b'x', 0xe5, 7, 0];
        assert_eq!(known_fields(&footer).unwrap(), [0x15, 2, 0x58, 1, b'x', 0]);
    }

    #[test]
    fn what_is_no_thrift_is_not_repaired() {
        let deep = [0x2c; 1000];
        for bytes in [
            &b""[..],
            b"\x15",
            b"\x15\x80",
            &deep,
            b"\x18\xff\xff\xff\x0f",
        ] {
            assert_eq!(known_fields(bytes), None);
        }
    }
}
