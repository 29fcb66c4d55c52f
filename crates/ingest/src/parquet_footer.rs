//! Parquet footers with fields that the format does not define.
//!
//! Thrift requires readers to skip a field whose type is not the expected one. The parquet crate reads it as the
//! expected type and then fails on the following bytes. Some writers use private fields with numbers that the format
//! assigned later: Dremio writes page headers as field 15 of a column's metadata, which is now `bloom_filter_length`.

use crate::thrift::ThriftReader;
use crate::thrift::kind::{BINARY, I16, I32, I64, LIST, STRUCT};

/// Maximum nesting of skipped values, which is more than in any footer.
const NESTING_MAX: u32 = 32;

/// A struct of parquet.thrift: the type of each field, from number 1 on; and the shape of structs and lists of
/// structs in which fields may have to be removed too.
struct ThriftShape(&'static [(u8, Option<&'static ThriftShape>)]);

const FILE: ThriftShape = ThriftShape(&[
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

const ROW_GROUP: ThriftShape = ThriftShape(&[
    (LIST, Some(&COLUMN)),
    (I64, None),
    (I64, None),
    (LIST, None),
    (I64, None),
    (I64, None),
    (I16, None),
]);

const COLUMN: ThriftShape = ThriftShape(&[
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

const COLUMN_METADATA: ThriftShape = ThriftShape(&[
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

/// Returns the footer without fields that the format does not define; `None` if it is not Thrift.
pub fn known_fields(footer: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(footer.len());
    copy_struct(&mut reader(footer), &mut out, &FILE)?;
    Some(out)
}

fn reader(bytes: &[u8]) -> ThriftReader<'_> {
    ThriftReader {
        bytes,
        at: 0,
        value_bytes_max: u64::MAX,
    }
}

fn copy_struct(
    thrift: &mut ThriftReader<'_>,
    out: &mut Vec<u8>,
    shape: &ThriftShape,
) -> Option<()> {
    let (mut number, mut written) = (0, 0);
    while let Some(kind) = thrift.field(&mut number).ok()? {
        let begin = thrift.at;
        thrift.skip(kind, NESTING_MAX).ok()?;
        let place = i16::try_from(number).ok()?.checked_sub(1);
        let place = place.and_then(|place| usize::try_from(place).ok());
        let Some((_, inner)) = place
            .and_then(|place| shape.0.get(place))
            .filter(|known| known.0 == kind)
        else {
            continue;
        };
        // Known fields have small, ascending numbers in footers of this kind; other orders are not repaired.
        let step = u8::try_from(number - written).ok()?;
        if !(1..16).contains(&step) {
            return None;
        }
        written = number;
        out.push(step << 4 | kind);
        let mut value = reader(&thrift.bytes[begin..thrift.at]);
        match inner {
            None => out.extend_from_slice(value.bytes),
            Some(inner) if kind == STRUCT => copy_struct(&mut value, out, inner)?,
            Some(inner) => {
                let (count, of) = value.list().ok()?;
                out.extend_from_slice(&value.bytes[..value.at]);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_another_type_is_skipped_and_the_next_is_kept() {
        // Version 1, a list as field 3 instead of rows, text as field 6, and a private field 20.
        let footer = [0x15, 2, 0x29, 0x1c, 0x15, 9, 0, 0x38, 1, b'x', 0xe5, 7, 0];
        assert_eq!(known_fields(&footer).unwrap(), [0x15, 2, 0x58, 1, b'x', 0]);
    }

    #[test]
    fn invalid_thrift_is_not_repaired() {
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
