//! The encoding of a row's value for replication and on disk, with its expiry time.
//!
//! | size | contents |
//! |---|---|
//! | 1 | 0; 1 if the row has an expiry time |
//! | 8, or none | that time, in milliseconds since 1970, little-endian |
//! | the rest | the value |

const NO_EXPIRY: u8 = 0;
const HAS_EXPIRY: u8 = 1;

pub fn encode(value: &[u8], expires_at: Option<u64>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(9 + value.len());
    encode_into(&mut bytes, value, expires_at);
    bytes
}

pub fn encode_into(bytes: &mut Vec<u8>, value: &[u8], expires_at: Option<u64>) {
    match expires_at {
        None => bytes.push(NO_EXPIRY),
        Some(at) => {
            bytes.push(HAS_EXPIRY);
            bytes.extend_from_slice(&at.to_le_bytes());
        }
    }
    bytes.extend_from_slice(value);
}

/// Returns the value and the expiry time, or `None` if the bytes are not a valid encoding.
pub fn decode(bytes: &[u8]) -> Option<(&[u8], Option<u64>)> {
    match bytes.split_first()? {
        (&NO_EXPIRY, value) => Some((value, None)),
        (&HAS_EXPIRY, rest) => {
            let (at, value) = rest.split_first_chunk::<8>()?;
            Some((value, Some(u64::from_le_bytes(*at))))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_decode_to_themselves_and_other_bytes_to_nothing() {
        for (value, at) in [(&b""[..], None), (b"v", Some(7)), (b"", Some(u64::MAX))] {
            assert_eq!(decode(&encode(value, at)), Some((value, at)));
        }
        for wrong in [&b""[..], b"\x01", b"\x01\0\0\0\0\0\0\0", b"\x02v"] {
            assert_eq!(decode(wrong), None);
        }
    }
}
