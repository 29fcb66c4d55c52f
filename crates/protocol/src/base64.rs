//! Base64 with the standard alphabet and padding (RFC 4648, section 4): for bytes in JSON that are
//! no text, and for the credentials of HTTP.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut group = [0u8; 3];
        group[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from(group[0]) << 16 | u32::from(group[1]) << 8 | u32::from(group[2]);
        for place in 0..4 {
            if place <= chunk.len() {
                let index = (bits >> (18 - 6 * place)) & 63;
                text.push(char::from(ALPHABET[index as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

/// The bytes that [`encode`] makes `text` of; `None` for anything it does not make.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let digits = text.trim_end_matches('=').as_bytes();
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for chunk in digits.chunks(4) {
        let mut bits = 0u32;
        for place in 0..4 {
            let value = match chunk.get(place) {
                Some(digit) => ALPHABET.iter().position(|known| known == digit)?,
                None => 0,
            };
            bits = bits << 6 | value as u32;
        }
        bytes.extend_from_slice(&bits.to_be_bytes()[1..chunk.len()]);
    }
    // Padding of another length, and bits that no byte takes, are refused by making it anew.
    (encode(&bytes) == text).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_every_padding_read_back_and_others_are_refused() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
        }
        for bad in [
            "Z",
            "Zg=",
            "Zg",
            "Zh==",
            "Z===",
            "====",
            "Zg==Zg==",
            "Z g=",
            "Zm9\u{e9}",
        ] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
