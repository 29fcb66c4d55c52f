//! Reads replies that other cores sent to commands of this one: numbers, values, and arrays of values.

use std::ops::Range;

use larder_types::integer;

/// The number that a reply is.
pub(super) fn number(reply: &[u8]) -> Option<i64> {
    let digits = reply.strip_prefix(b":")?.strip_suffix(b"\r\n")?;
    integer(digits)
}

/// The value that a reply is; `None` of a null, and of what is no value.
pub(super) fn value(reply: &[u8]) -> Option<&[u8]> {
    reply.get(element(reply)?.value?)
}

/// The elements of an array of values and nulls, as they are encoded.
pub(super) fn elements(reply: &[u8]) -> Option<Vec<&[u8]>> {
    let rest = reply.strip_prefix(b"*")?;
    let (count, size) = line(rest)?;
    let mut rest = &rest[size..];
    // Each takes a byte at least.
    let mut elements = Vec::with_capacity(usize::try_from(count).ok()?.min(rest.len()));
    for _ in 0..count {
        let (element, after) = rest.split_at_checked(element(rest)?.size)?;
        elements.push(element);
        rest = after;
    }
    rest.is_empty().then_some(elements)
}

/// A value or a null that some bytes begin with.
struct Element {
    /// Of all of it, which may be more than there is.
    size: usize,
    value: Option<Range<usize>>,
}

fn element(bytes: &[u8]) -> Option<Element> {
    let null = |size| Element { size, value: None };
    match bytes.first()? {
        b'_' => Some(null(3)),
        b'$' => {
            let (size, head) = line(&bytes[1..])?;
            let begin = 1 + head;
            let Ok(size) = usize::try_from(size) else {
                return Some(null(begin));
            };
            let end = begin.checked_add(size)?;
            Some(Element {
                size: end.checked_add(2)?,
                value: Some(begin..end),
            })
        }
        _ => None,
    }
}

/// The number on the first line, and how many bytes the line takes.
fn line(bytes: &[u8]) -> Option<(i64, usize)> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let number = integer(bytes[..end].strip_suffix(b"\r")?)?;
    Some((number, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_is_cut_into_its_elements() {
        let reply = b"*4\r\n$3\r\na\r\n\r\n$-1\r\n_\r\n$0\r\n\r\n";
        let cut = elements(reply).expect("an array");
        let expected: [&[u8]; 4] = [b"$3\r\na\r\n\r\n", b"$-1\r\n", b"_\r\n", b"$0\r\n\r\n"];
        assert_eq!(cut, expected);
        for bad in [
            &b"*2\r\n$1\r\na\r\n"[..],
            b"*1\r\n$9\r\na\r\n",
            b"+OK\r\n",
            b"*1\r\n:1\r\n",
        ] {
            assert_eq!(elements(bad), None);
        }
        assert_eq!(number(b":12\r\n"), Some(12));
    }

    #[test]
    fn a_value_is_told_from_a_null_and_from_what_is_cut() {
        assert_eq!(value(b"$3\r\na\r\n\r\n"), Some(&b"a\r\n"[..]));
        assert_eq!(value(b"$0\r\n\r\n"), Some(&b""[..]));
        for none in [&b"$-1\r\n"[..], b"_\r\n", b"$9\r\na\r\n", b":1\r\n", b""] {
            assert_eq!(value(none), None);
        }
    }
}
