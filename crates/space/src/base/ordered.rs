//! Scalar values, and an order-preserving byte encoding.
//!
//! | kind | tag | following bytes |
//! |---|---|---|
//! | boolean | 1 | 0 or 1 |
//! | number | 2 | 10: the greatest double not above the number, then the remainder |
//! | instant | 3 | 8: microseconds with the sign bit flipped, big-endian |
//! | bytes | 4 | each 0 as 0 255, then 0 1 |
//!
//! 1. Within a kind, encodings order like the values, also when other bytes follow: the encoding is prefix-free.
//! 2. The encoding is canonical: decoded bytes encode to the same bytes.

use super::number::Number;
use larder_types::wire::Malformed;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scalar {
    Boolean(bool),
    Number(Number),
    /// Microseconds since 1970.
    Instant(i64),
    /// A tag or a text.
    Bytes(Vec<u8>),
}

impl Scalar {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Scalar::Boolean(flag) => out.extend([1, u8::from(*flag)]),
            Scalar::Number(number) => {
                out.push(2);
                number.encode_ordered(out);
            }
            Scalar::Instant(micros) => {
                out.push(3);
                out.extend_from_slice(&(*micros as u64 ^ 1 << 63).to_be_bytes());
            }
            Scalar::Bytes(bytes) => {
                out.push(4);
                for &byte in bytes {
                    out.push(byte);
                    if byte == 0 {
                        out.push(255);
                    }
                }
                out.extend([0, 1]);
            }
        }
    }

    pub fn encoded(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }

    /// Decodes the value at the start of the bytes, and returns it with the remaining bytes.
    ///
    /// # Errors
    /// The bytes do not start with an encoded value.
    pub fn decode(bytes: &[u8]) -> Result<(Scalar, &[u8]), Malformed> {
        const BAD: Malformed = Malformed("the bytes are not an ordered value");
        let (kind, rest) = bytes.split_first().ok_or(BAD)?;
        match kind {
            1 => match rest.split_first().ok_or(BAD)? {
                (flag @ 0..=1, rest) => Ok((Scalar::Boolean(*flag == 1), rest)),
                _ => Err(BAD),
            },
            2 => {
                let (bytes, rest) = rest.split_first_chunk::<10>().ok_or(BAD)?;
                let number = Number::decode_ordered(*bytes).ok_or(BAD)?;
                Ok((Scalar::Number(number), rest))
            }
            3 => {
                let (bytes, rest) = rest.split_first_chunk::<8>().ok_or(BAD)?;
                let micros = (u64::from_be_bytes(*bytes) ^ 1 << 63) as i64;
                Ok((Scalar::Instant(micros), rest))
            }
            4 => {
                let mut out = Vec::new();
                let mut rest = rest;
                loop {
                    match rest {
                        [0, 1, behind @ ..] => return Ok((Scalar::Bytes(out), behind)),
                        [0, 255, behind @ ..] => {
                            out.push(0);
                            rest = behind;
                        }
                        [byte @ 1..=255, behind @ ..] => {
                            out.push(*byte);
                            rest = behind;
                        }
                        _ => return Err(BAD),
                    }
                }
            }
            _ => Err(BAD),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_scalar() -> impl Strategy<Value = Scalar> {
        prop_oneof![
            any::<bool>().prop_map(Scalar::Boolean),
            any::<i64>().prop_map(|n| Scalar::Number(Number::Int(n))),
            any::<f64>().prop_filter_map("no NaN", |f| Number::from_f64(f).map(Scalar::Number)),
            any::<i64>().prop_map(Scalar::Instant),
            proptest::collection::vec(prop_oneof![Just(0), Just(1), Just(255), any::<u8>()], 0..6)
                .prop_map(Scalar::Bytes),
        ]
    }

    proptest! {
        #[test]
        fn encoded_values_sort_like_values(a in any_scalar(), b in any_scalar(), behind in any::<[u8; 2]>()) {
            let (mut x, mut y) = (a.encoded(), b.encoded());
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
            prop_assert_eq!(Scalar::decode(&x), Ok((a.clone(), &[][..])));
            x.push(behind[0]);
            y.push(behind[1]);
            prop_assert_eq!(x.cmp(&y), a.cmp(&b).then(behind[0].cmp(&behind[1])));
        }

        #[test]
        fn decoded_values_encode_to_the_same_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..14), kind in 1_u8..5) {
            let bytes = [&[kind][..], &bytes].concat();
            if let Ok((scalar, rest)) = Scalar::decode(&bytes) {
                prop_assert_eq!([scalar.encoded(), rest.to_vec()].concat(), bytes);
            }
        }
    }
}
