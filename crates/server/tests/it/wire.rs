//! Reads of complete RESP frames from a connection.

use std::io::{self, BufRead};

use larder_protocol::resp::client::{Reader, Reply, Step, Token};

/// Returns the bytes of one reply or request, and leaves later bytes in the stream.
pub fn frame(stream: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let (mut reader, mut bytes, mut at) = (Reader::default(), Vec::new(), 0);
    loop {
        match reader.next(&bytes[at..]).map_err(io::Error::other)? {
            Step::Piece(piece) => {
                at += piece.size;
                if piece.is_last {
                    return Ok(bytes);
                }
            }
            Step::Incomplete(needed) => {
                let more = stream.fill_buf()?;
                if more.is_empty() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let size = more.len().min(at + needed - bytes.len());
                bytes.extend_from_slice(&more[..size]);
                stream.consume(size);
            }
        }
    }
}

pub fn reply(stream: &mut impl BufRead) -> io::Result<Reply> {
    let first = Reply::first(&frame(stream)?).map_err(io::Error::other)?;
    Ok(first.expect("a complete reply").0)
}

/// Returns a reply in its encoded form with `|` for line breaks. Nested replies follow one another.
pub fn format_frame(frame: &[u8]) -> String {
    let (mut all, mut rest) = (Vec::new(), frame);
    while let Some((_, size)) = Token::first(rest) {
        let text = String::from_utf8_lossy(&rest[..size - 2]);
        // Only the line break after a length is replaced. Values keep theirs.
        all.push(text.replacen("\r\n", "|", 1));
        rest = &rest[size..];
    }
    all.join("|")
}

#[test]
fn a_reply_is_printed_verbatim_and_later_bytes_stay_in_the_stream() {
    let mut bytes = &b"*3\r\n$4\r\na\r\nb\r\n%1\r\n$-1\r\n$0\r\n\r\n:5\r\n+OK\r\n"[..];
    let first = frame(&mut bytes).expect("a reply");
    assert_eq!(format_frame(&first), "*3|$4|a\r\nb|%1|$-1|$0||:5");
    let second = frame(&mut bytes).expect("a reply");
    assert_eq!((format_frame(&second).as_str(), bytes), ("+OK", &b""[..]));
    assert!(frame(&mut bytes).is_err());
}
