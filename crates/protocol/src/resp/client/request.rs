//! Appends requests, which are arrays of bulk strings, to a buffer. Only the growth of the buffer allocates.

use crate::resp::digits::push_head;

/// Appends a request with its name and its arguments.
#[inline]
pub fn request(out: &mut Vec<u8>, arguments: &[impl AsRef<[u8]>]) {
    request_head(out, arguments.len());
    for bytes in arguments {
        argument(out, bytes.as_ref());
    }
}

/// Appends the head of a request. `arguments` arguments must follow. The first is the command's name.
#[inline]
pub fn request_head(out: &mut Vec<u8>, arguments: usize) {
    push_head(out, b'*', arguments);
}

/// Appends an argument.
#[inline]
pub fn argument(out: &mut Vec<u8>, bytes: &[u8]) {
    push_head(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Appends an argument of `size` bytes, which `write` must append.
///
/// # Panics
/// `write` appends more or fewer bytes.
#[inline]
pub fn argument_with(out: &mut Vec<u8>, size: usize, write: impl FnOnce(&mut Vec<u8>)) {
    push_head(out, b'$', size);
    let begin = out.len();
    write(out);
    assert_eq!(
        out.len() - begin,
        size,
        "an argument has the size that was announced"
    );
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::resp::{Decoder, Limits, Step};

    #[test]
    fn a_request_is_an_array_of_bulk_strings() {
        let mut out = Vec::new();
        request(&mut out, &["GET", "a key of eleven"]);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$15\r\na key of eleven\r\n");
        let mixed: [&dyn AsRef<[u8]>; 2] = [&"GET", &vec![7]];
        out.clear();
        request(&mut out, &mixed);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$1\r\n\x07\r\n");
        out.clear();
        request_head(&mut out, 1);
        argument_with(&mut out, 4, |out| out.extend_from_slice(b"PING"));
        assert_eq!(out, b"*1\r\n$4\r\nPING\r\n");
    }

    #[test]
    #[should_panic(expected = "the size that was announced")]
    fn an_argument_of_another_size_than_announced_is_not_sent() {
        argument_with(&mut Vec::new(), 4, |out| out.extend_from_slice(b"PINGS"));
    }

    proptest! {
        #[test]
        fn requests_round_trip(
            requests in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..12), 0..8),
        ) {
            let mut bytes = Vec::new();
            requests.iter().for_each(|arguments| request(&mut bytes, arguments));
            let (mut decoder, mut read, mut at) = (Decoder::new(Limits::default()), Vec::new(), 0);
            while at < bytes.len() {
                let Ok(Step::Request(size)) = decoder.decode(&bytes[at..]) else {
                    panic!("no request at byte {at}")
                };
                let arguments: Vec<Vec<u8>> =
                    decoder.request(&bytes[at..]).args().map(<[u8]>::to_vec).collect();
                read.push(arguments);
                at += size;
            }
            prop_assert_eq!(read, requests);
        }
    }
}
