//! Decodes replies of other cores: numbers, values, and arrays.

use larder_protocol::resp::client::Token;

/// Returns the number, if the reply is an integer.
pub(super) fn decode_integer(reply: &[u8]) -> Option<i64> {
    match Token::first(reply)? {
        (Token::Integer(number), size) if size == reply.len() => Some(number),
        _ => None,
    }
}

/// Returns the value, if the reply is a bulk string; `None` for a null or any other reply.
pub(super) fn decode_value(reply: &[u8]) -> Option<&[u8]> {
    match Token::first(reply)? {
        (Token::Bulk(value), _) => Some(value),
        _ => None,
    }
}

/// Returns the elements of an array of bulk strings and nulls, still encoded.
pub(super) fn decode_elements(reply: &[u8]) -> Option<Vec<&[u8]>> {
    let (Token::Array(count), size) = Token::first(reply)? else {
        return None;
    };
    let mut rest = &reply[size..];
    // Each element takes at least one byte.
    let mut elements = Vec::with_capacity(count.min(rest.len()));
    for _ in 0..count {
        let (Token::Bulk(_) | Token::Null, size) = Token::first(rest)? else {
            return None;
        };
        let (element, after) = rest.split_at(size);
        elements.push(element);
        rest = after;
    }
    rest.is_empty().then_some(elements)
}

/// As [`elements`], for elements of any type.
pub(super) fn decode_nested_elements(reply: &[u8]) -> Option<Vec<&[u8]>> {
    let (Token::Array(count), size) = Token::first(reply)? else {
        return None;
    };
    let mut rest = &reply[size..];
    let mut elements = Vec::with_capacity(count.min(rest.len()));
    for _ in 0..count {
        let (mut left, mut size) = (1, 0);
        while left > 0 {
            let (token, token_size) = Token::first(&rest[size..])?;
            left = left - 1 + token.children();
            size += token_size;
        }
        let (element, after) = rest.split_at(size);
        elements.push(element);
        rest = after;
    }
    rest.is_empty().then_some(elements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_is_split_into_its_elements() {
        let reply = b"*4\r\n$3\r\na\r\n\r\n$-1\r\n_\r\n$0\r\n\r\n";
        let split = decode_elements(reply).expect("an array");
        let expected: [&[u8]; 4] = [b"$3\r\na\r\n\r\n", b"$-1\r\n", b"_\r\n", b"$0\r\n\r\n"];
        assert_eq!(split, expected);
        for bad in [
            &b"*2\r\n$1\r\na\r\n"[..],
            b"*1\r\n$9\r\na\r\n",
            b"+OK\r\n",
            b"*1\r\n:1\r\n",
        ] {
            assert_eq!(decode_elements(bad), None);
        }
        assert_eq!(decode_integer(b":12\r\n"), Some(12));
    }

    #[test]
    fn a_value_differs_from_a_null_and_from_a_truncated_reply() {
        assert_eq!(decode_value(b"$3\r\na\r\n\r\n"), Some(&b"a\r\n"[..]));
        assert_eq!(decode_value(b"$0\r\n\r\n"), Some(&b""[..]));
        for none in [&b"$-1\r\n"[..], b"_\r\n", b"$9\r\na\r\n", b":1\r\n", b""] {
            assert_eq!(decode_value(none), None);
        }
    }
}
