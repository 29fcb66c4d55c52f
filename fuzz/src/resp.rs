//! The bytes of a connection.

use larder_protocol::resp::{Decoder, Limits, Step};

/// The result of decoding: the requests, and whether they end with an error.
#[derive(Debug, PartialEq, Eq)]
struct Decoded {
    requests: Vec<Vec<Vec<u8>>>,
    failed: bool,
}

/// Bytes in pieces yield the same requests as all bytes together, within the limits.
pub fn resp(bytes: &[u8]) {
    let small = Limits {
        arguments_max: 8,
        argument_bytes_max: 64,
        request_bytes_max: 256,
        line_bytes_max: 64,
    };
    for limits in [Limits::default(), small] {
        let complete = decode(bytes, limits, |_| usize::MAX);
        let one_by_one = decode(bytes, limits, |_| 1);
        // The bytes themselves determine the sizes of the pieces.
        let pieces = decode(bytes, limits, |at| usize::from(bytes[at] % 16) + 1);
        for split in [one_by_one, pieces] {
            assert_eq!(split.requests, complete.requests);
            // A line that is too long and incomplete may be rejected earlier if it arrives in pieces.
            assert!(
                split.failed || !complete.failed,
                "an error occurs only with complete input"
            );
        }

        for request in &complete.requests {
            assert!(
                (1..=limits.arguments_max).contains(&request.len()),
                "{} arguments",
                request.len()
            );
            let longest = request.iter().map(Vec::len).max().unwrap_or_default();
            assert!(
                longest <= limits.argument_bytes_max,
                "an argument of {longest} bytes"
            );
        }
    }
}

/// Decodes `bytes`, which arrive in pieces. `piece(at)` returns the size of the piece at position `at`.
fn decode(bytes: &[u8], limits: Limits, piece: impl Fn(usize) -> usize) -> Decoded {
    let mut decoder = Decoder::new(limits);
    let mut decoded = Decoded {
        requests: Vec::new(),
        failed: false,
    };
    let (mut start, mut end) = (0, 0);
    loop {
        let input = &bytes[start..end];
        match decoder.decode(input) {
            Ok(Step::Request(size)) => {
                let request = decoder.request(input);
                decoded
                    .requests
                    .push(request.args().map(<[u8]>::to_vec).collect());
                start += size;
            }
            Ok(Step::Skip(size)) => {
                assert!(size > 0, "a skip moves on");
                start += size;
            }
            Ok(Step::Incomplete(needed)) => {
                assert!(
                    needed > input.len(),
                    "incomplete, yet {needed} bytes would do of {}",
                    input.len()
                );
                if end == bytes.len() {
                    return decoded;
                }
                end = end.saturating_add(piece(end)).min(bytes.len());
            }
            Err(error) => {
                let text = error.to_string();
                assert!(
                    !text.contains(['\r', '\n']),
                    "an error is one line: {text:?}"
                );
                decoded.failed = true;
                return decoded;
            }
        }
    }
}
