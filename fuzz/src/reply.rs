//! The replies of a server, as read by a client.

use larder_protocol::resp::client::{
    Reader, Replies, Reply, ReplyError, ReplyLimits, Step, Token, request,
};
use larder_protocol::resp::{self, Decoder, Limits};

/// The result of reading: tokens with their positions, and the final error.
#[derive(Debug, PartialEq)]
struct Read<'a> {
    tokens: Vec<Token<'a>>,
    /// The size, the depth, and whether the reply ends.
    places: Vec<(usize, usize, bool)>,
    error: Option<ReplyError>,
}

/// Bytes in pieces yield the same replies, or an error at the same byte, as all bytes together, within the limits.
/// Replies survive encoding and decoding.
pub fn reply(bytes: &[u8]) {
    let small = ReplyLimits {
        value_bytes_max: 16,
        line_bytes_max: 8,
        elements_max: 6,
        reply_bytes_max: 40,
    };
    for limits in [ReplyLimits::default(), small] {
        let complete = read(bytes, limits, |_| usize::MAX);
        let one_by_one = read(bytes, limits, |_| 1);
        // The bytes themselves determine the sizes of the pieces.
        let pieces = read(bytes, limits, |at| usize::from(bytes[at] % 16) + 1);
        for split in [one_by_one, pieces] {
            assert_same(&split, &complete);
        }
        check_limits(&complete, limits);
        check_again(&complete);
    }
    let complete = replies(bytes, |_| usize::MAX);
    let pieces = replies(bytes, |at| usize::from(bytes[at] % 16) + 1);
    // Compare the printed forms, because NaN is not equal to itself.
    assert_eq!(format!("{complete:?}"), format!("{pieces:?}"));
}

/// Returns the number of complete replies at the start of the bytes.
pub fn complete_replies(bytes: &[u8]) -> usize {
    replies(bytes, |_| usize::MAX).0.len()
}

fn assert_same(one: &Read<'_>, other: &Read<'_>) {
    assert_eq!(one.places, other.places);
    assert_eq!(one.error, other.error);
    assert_eq!(format!("{:?}", one.tokens), format!("{:?}", other.tokens));
}

fn read(bytes: &[u8], limits: ReplyLimits, piece: impl Fn(usize) -> usize) -> Read<'_> {
    let (mut reader, mut at, mut end) = (Reader::new(limits), 0, 0);
    let mut read = Read {
        tokens: Vec::new(),
        places: Vec::new(),
        error: None,
    };
    let mut needed = 0;
    loop {
        match reader.next(&bytes[at..end]) {
            Ok(Step::Piece(piece)) => {
                assert!(
                    needed <= piece.size,
                    "{needed} bytes needed of {}",
                    piece.size
                );
                needed = 0;
                read.tokens.push(piece.token);
                read.places.push((piece.size, piece.depth, piece.is_last));
                at += piece.size;
            }
            Ok(Step::Incomplete(more)) => {
                assert!(more > end - at, "incomplete, yet {more} bytes would do");
                needed = more;
                if end == bytes.len() {
                    return read;
                }
                end = end.saturating_add(piece(end)).min(bytes.len());
            }
            Err(error) => {
                assert!(error.at <= end as u64);
                assert!(!error.to_string().contains(['\r', '\n']), "{error}");
                read.error = Some(error);
                return read;
            }
        }
    }
}

fn check_limits(read: &Read<'_>, limits: ReplyLimits) {
    let (mut size, mut elements) = (0, 0);
    for (token, (bytes, _, is_last)) in read.tokens.iter().zip(&read.places) {
        size += *bytes as u64;
        elements += token.children();
        let longest = limits.value_bytes_max.max(limits.line_bytes_max);
        let text = match token {
            Token::Bulk(text) | Token::Simple(text) | Token::Error(text) => text,
            Token::BigNumber(text) | Token::Verbatim { text, .. } => text,
            _ => &[][..],
        };
        assert!(text.len() <= longest);
        assert!(size <= limits.reply_bytes_max && elements <= limits.elements_max);
        if *is_last {
            (size, elements) = (0, 0);
        }
    }
}

/// Checks that tokens survive encoding and decoding. Consecutive strings form a request, which a server can decode.
fn check_again(read: &Read<'_>) {
    let mut bytes = Vec::new();
    for token in &read.tokens {
        spell(*token, &mut bytes);
    }
    let again = self::read(&bytes, ReplyLimits::default(), |_| usize::MAX);
    assert_eq!(again.error, None);
    assert_eq!(format!("{:?}", again.tokens), format!("{:?}", read.tokens));

    let strings: Vec<&[u8]> = read.tokens.iter().filter_map(string).collect();
    if strings.is_empty() {
        return;
    }
    let mut bytes = Vec::new();
    request(&mut bytes, &strings);
    let mut decoder = Decoder::new(Limits::default());
    assert_eq!(decoder.decode(&bytes), Ok(resp::Step::Request(bytes.len())));
    assert!(decoder.request(&bytes).args().eq(strings.iter().copied()));
    let owned = strings.iter().map(|bytes| Reply::Bulk(bytes.to_vec()));
    let (sent, size) = Reply::first(&bytes).expect("a reply").expect("complete");
    assert_eq!((sent, size), (Reply::Array(owned.collect()), bytes.len()));
}

fn string<'a>(token: &Token<'a>) -> Option<&'a [u8]> {
    match token {
        Token::Bulk(bytes) => Some(bytes),
        _ => None,
    }
}

fn spell(token: Token<'_>, out: &mut Vec<u8>) {
    let mut put = |head: String, text: &[u8]| {
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(text);
        out.extend_from_slice(b"\r\n");
    };
    match token {
        Token::Null => put("_".into(), b""),
        Token::Bulk(text) => put(format!("${}\r\n", text.len()), text),
        Token::Simple(text) => put("+".into(), text),
        Token::Error(text) => put(format!("!{}\r\n", text.len()), text),
        Token::Integer(number) => put(format!(":{number}"), b""),
        Token::Double(number) => put(format!(",{number}"), b""),
        Token::Boolean(value) => put(if value { "#t" } else { "#f" }.into(), b""),
        Token::BigNumber(digits) => put("(".into(), digits),
        Token::Verbatim { format, text } => {
            let all = [&format[..], b":", text].concat();
            put(format!("={}\r\n", all.len()), &all);
        }
        Token::Array(count) => put(format!("*{count}"), b""),
        Token::Set(count) => put(format!("~{count}"), b""),
        Token::Push(count) => put(format!(">{count}"), b""),
        Token::Map(pairs) => put(format!("%{pairs}"), b""),
        Token::Attribute(pairs) => put(format!("|{pairs}"), b""),
    }
}

/// Returns the complete replies in bytes that arrive in pieces, and the final error.
fn replies(bytes: &[u8], piece: impl Fn(usize) -> usize) -> (Vec<Reply>, Option<ReplyError>) {
    let (mut replies, mut all, mut at) = (Replies::default(), Vec::new(), 0);
    while at < bytes.len() {
        let room = replies.input().spare();
        let size = piece(at).min(bytes.len() - at).min(room.len());
        room[..size].copy_from_slice(&bytes[at..at + size]);
        replies.input().commit(size);
        at += size;
        loop {
            match replies.next_reply() {
                Ok(Some(reply)) => all.push(reply),
                Ok(None) => break,
                Err(error) => return (all, Some(error)),
            }
        }
    }
    (all, None)
}
