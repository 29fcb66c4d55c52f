//! Tests replies of every kind, valid and invalid, in any pieces, and replies that the server's encoder wrote.

use proptest::prelude::*;

use super::*;
use crate::resp::{Encoder, Proto};

/// The printed tokens, and the error after them, if any.
type Seen = (Vec<String>, Option<ReplyError>);

/// Reads `bytes`, which arrive in pieces of the given sizes.
fn tokens(bytes: &[u8], pieces: &[usize], limits: ReplyLimits) -> Seen {
    let (mut reader, mut seen) = (Reader::new(limits), Vec::new());
    let (mut at, mut end) = (0, 0);
    let mut pieces = pieces.iter().copied().cycle();
    loop {
        match reader.next(&bytes[at..end]) {
            Ok(Step::Piece(piece)) => {
                seen.push(format!("{piece:?}"));
                at += piece.size;
            }
            Ok(Step::Incomplete(needed)) => {
                assert!(needed > end - at);
                if end == bytes.len() {
                    return (seen, None);
                }
                let piece = pieces.next().unwrap_or(1);
                end = bytes.len().min(end.saturating_add(piece));
            }
            Err(error) => return (seen, Some(error)),
        }
    }
}

fn replies(bytes: &[u8], pieces: &[usize]) -> Result<Vec<Reply>, ReplyError> {
    let (mut replies, mut all, mut rest) = (Replies::default(), Vec::new(), bytes);
    let mut pieces = pieces.iter().copied().cycle();
    while !rest.is_empty() {
        let room = replies.input().spare();
        let size = pieces.next().unwrap_or(1).min(rest.len()).min(room.len());
        let (piece, after) = rest.split_at(size);
        room[..size].copy_from_slice(piece);
        replies.input().commit(size);
        rest = after;
        while let Some(reply) = replies.next_reply()? {
            all.push(reply);
        }
    }
    Ok(all)
}

#[test]
fn every_token_is_decoded_and_any_prefix_is_incomplete() {
    for (bytes, expected) in [
        (&b"+OK\r\n"[..], Token::Simple(b"OK")),
        (b"+\r\n", Token::Simple(b"")),
        (b"-ERR no\r\n", Token::Error(b"ERR no")),
        (b":-7\r\n", Token::Integer(-7)),
        (b":+7\r\n", Token::Integer(7)),
        (b":9223372036854775807\r\n", Token::Integer(i64::MAX)),
        (b":-9223372036854775808\r\n", Token::Integer(i64::MIN)),
        (b"$-1\r\n", Token::Null),
        (b"*-1\r\n", Token::Null),
        (b"_\r\n", Token::Null),
        (b"*3\r\n", Token::Array(3)),
        (b"~12\r\n", Token::Set(12)),
        (b">2\r\n", Token::Push(2)),
        (b"%1\r\n", Token::Map(1)),
        (b"|0\r\n", Token::Attribute(0)),
        (b"$0\r\n\r\n", Token::Bulk(b"")),
        (b"$4\r\na\r\nb\r\n", Token::Bulk(b"a\r\nb")),
        (b"$12\r\n0123456789ab\r\n", Token::Bulk(b"0123456789ab")),
        (b"!6\r\nERR\r\nx\r\n", Token::Error(b"ERR\r\nx")),
        (b"#t\r\n", Token::Boolean(true)),
        (b"#f\r\n", Token::Boolean(false)),
        (b",-1.5e3\r\n", Token::Double(-1500.0)),
        (b",inf\r\n", Token::Double(f64::INFINITY)),
        (
            b"(-12345678901234567890\r\n",
            Token::BigNumber(b"-12345678901234567890"),
        ),
        (
            b"=6\r\ntxt:hi\r\n",
            Token::Verbatim {
                format: *b"txt",
                text: b"hi",
            },
        ),
    ] {
        let mut more = bytes.to_vec();
        more.extend_from_slice(b"$1");
        assert_eq!(Token::first(&more), Some((expected, bytes.len())));
        for part in 0..bytes.len() {
            assert_eq!(Token::first(&bytes[..part]), None);
            let Ok(Step::Incomplete(needed)) = Reader::default().next(&bytes[..part]) else {
                panic!("{part} bytes of {bytes:?}")
            };
            assert!(
                needed > part && needed <= bytes.len(),
                "{part} of {bytes:?}"
            );
        }
    }
}

#[test]
fn malformed_replies_report_position_and_fault() {
    let deep = b"*1\r\n".repeat(40);
    let long = [b"+OK\r\n-", &b"x".repeat(70_000)[..]].concat();
    for (bad, text) in [
        (
            &b"HTTP/1.1 400\r\n"[..],
            "byte 0 of the replies: no reply begins with 'H'",
        ),
        (b"\r\n", "byte 0 of the replies: no reply begins with 0x0d"),
        (
            b"+OK\r\n:1\r\n$3\r\nabcde",
            "byte 16 of the replies: expected CR LF, got 'd'",
        ),
        (
            b"$99999999999\r\n",
            "byte 1 of the replies: a value of 99999999999 bytes, of at most 1073741824",
        ),
        (b"*2\r\n$-2\r\n", "byte 5 of the replies: a length of -2"),
        (b"*-2\r\n", "byte 1 of the replies: a length of -2"),
        (b"%-1\r\n", "byte 1 of the replies: a length of -1"),
        (
            b"*16777217\r\n",
            "byte 0 of the replies: more than 16777216 replies in one",
        ),
        (
            b":x\r\n",
            "byte 1 of the replies: expected a digit, got 'x'",
        ),
        (
            b":\r\n",
            "byte 1 of the replies: expected a digit, got 0x0d",
        ),
        (
            b":-\r\n",
            "byte 2 of the replies: expected a digit, got 0x0d",
        ),
        (
            b"$+1\r\nx\r\n",
            "byte 1 of the replies: expected a digit, got '+'",
        ),
        (
            b":1 \r\n",
            "byte 2 of the replies: expected a digit, got 0x20",
        ),
        (b":1\rx", "byte 3 of the replies: expected CR LF, got 'x'"),
        (
            b":9223372036854775808\r\n",
            "byte 1 of the replies: a number that does not fit 64 bits",
        ),
        (
            b":00000000000000000000",
            "byte 1 of the replies: a number that does not fit 64 bits",
        ),
        (b"+OK\rx", "byte 4 of the replies: expected CR LF, got 'x'"),
        (b"+OK\n", "byte 3 of the replies: expected CR LF, got 0x0a"),
        (
            b"#y\r\n",
            "byte 1 of the replies: expected 't' or 'f', got 'y'",
        ),
        (b"_x\r\n", "byte 1 of the replies: expected CR LF, got 'x'"),
        (
            b",1.x\r\n",
            "byte 1 of the replies: no number with a fraction",
        ),
        (b"(\r\n", "byte 1 of the replies: expected digits only"),
        (
            b"=3\r\ntxt\r\n",
            "byte 4 of the replies: a text without its format",
        ),
        (
            b"$?\r\n",
            "byte 1 of the replies: expected a digit, got '?'",
        ),
        (
            &deep,
            "byte 64 of the replies: replies nested deeper than 16",
        ),
        (
            &long,
            "byte 5 of the replies: a line of more than 65536 bytes",
        ),
    ] {
        let shown = String::from_utf8_lossy(bad);
        let (_, error) = tokens(bad, &[usize::MAX], ReplyLimits::default());
        assert_eq!(
            error.map(|error| error.to_string()).as_deref(),
            Some(text),
            "{shown}"
        );
        let slowly = replies(bad, &[1]).map_err(|error| error.to_string());
        assert_eq!(slowly, Err(text.to_owned()), "{shown}");
    }
}

#[test]
fn limits_apply_to_a_reply_with_its_children() {
    let limits = ReplyLimits {
        value_bytes_max: 8,
        line_bytes_max: 8,
        elements_max: 4,
        reply_bytes_max: 30,
    };
    let good =
        b"$8\r\n12345678\r\n+12345678\r\n*2\r\n*2\r\n+a\r\n+b\r\n+c\r\n*4\r\n_\r\n_\r\n_\r\n_\r\n";
    assert_eq!(tokens(good, &[3], limits).1, None);
    for (bad, text) in [
        (&b"$9\r\n"[..], "a value of 9 bytes, of at most 8"),
        (b"+123456789\r\n", "a line of more than 8 bytes"),
        (b"*2\r\n*3\r\n", "more than 4 replies in one"),
        (b"%2\r\n|1\r\n", "more than 4 replies in one"),
        (
            b"*3\r\n+1234567\r\n+1234567\r\n$3\r\nabc\r\n",
            "a reply of more than 30 bytes",
        ),
    ] {
        for pieces in [[1], [usize::MAX]] {
            let (_, error) = tokens(bad, &pieces, limits);
            let error = error.expect("refused").to_string();
            assert!(error.ends_with(text), "{error}");
        }
    }
}

#[test]
fn trees_contain_their_tokens_without_attributes() {
    let bytes = b"%1\r\n+a\r\n|1\r\n+ttl\r\n:9\r\n~1\r\n#t\r\n>2\r\n+message\r\n*0\r\n-ERR no such thing\r\n-NOAUTH\r\n";
    let simple = |text: &str| Reply::Simple(text.to_owned());
    let error = |code: &str, message: &str| {
        Reply::Error(ErrorReply {
            code: code.to_owned(),
            message: message.to_owned(),
        })
    };
    let expected = [
        Reply::Map(vec![(simple("a"), Reply::Set(vec![Reply::Boolean(true)]))]),
        Reply::Push(vec![simple("message"), Reply::Array(Vec::new())]),
        error("ERR", "no such thing"),
        error("NOAUTH", ""),
    ];
    assert_eq!(replies(bytes, &[usize::MAX]).as_deref(), Ok(&expected[..]));
    assert_eq!(replies(bytes, &[1]).as_deref(), Ok(&expected[..]));
    assert_eq!(Reply::first(bytes), Ok(Some((expected[0].clone(), 30))));
    assert_eq!(Reply::first(&bytes[..29]), Ok(None));
    assert!(Reply::first(b"x").is_err());
}

/// A value that is larger than the usual size of the buffer is received completely. The buffer then shrinks.
#[test]
fn values_of_any_size_are_complete() {
    let value = b"0123456789".repeat(100_000);
    let mut bytes = Vec::new();
    request(&mut bytes, &[&value[..], b"x"]);
    bytes.extend_from_slice(b"+OK\r\n");
    let expected = [
        Reply::Array(vec![Reply::Bulk(value), Reply::Bulk(b"x".to_vec())]),
        Reply::Simple("OK".to_owned()),
    ];
    assert!(replies(&bytes, &[10_007]).is_ok_and(|all| all == expected));
}

/// Encodes a reply with the server's encoder, for the types that it has.
fn spell(reply: &Reply, out: &mut Vec<u8>, proto: Proto) {
    let mut encoder = Encoder { out, proto };
    let children: Vec<&Reply> = match reply {
        Reply::Array(children) => {
            encoder.array(children.len());
            children.iter().collect()
        }
        Reply::Set(children) => {
            encoder.set(children.len());
            children.iter().collect()
        }
        Reply::Push(children) => {
            encoder.push(children.len());
            children.iter().collect()
        }
        Reply::Map(pairs) => {
            encoder.map(pairs.len());
            pairs.iter().flat_map(|(key, value)| [key, value]).collect()
        }
        leaf => {
            match leaf {
                Reply::Null => encoder.null(),
                Reply::Simple(line) => encoder.simple(line),
                Reply::Integer(number) => encoder.integer(*number),
                Reply::Bulk(bytes) => encoder.bulk(bytes),
                Reply::Double(number) => encoder.double(*number),
                Reply::Boolean(value) => encoder.boolean(*value),
                Reply::Verbatim { text, .. } => {
                    encoder.verbatim(str::from_utf8(text).expect("made of text"));
                }
                Reply::BigNumber(digits) => {
                    out.extend_from_slice(format!("({digits}\r\n").as_bytes())
                }
                Reply::Error(error) => {
                    let ErrorReply { code, message } = error;
                    out.extend_from_slice(format!("-{code} {message}\r\n").as_bytes());
                }
                _ => unreachable!("it holds others"),
            }
            Vec::new()
        }
    };
    for child in children {
        spell(child, out, proto);
    }
}

/// Returns the form of a reply in version 2.
fn in_version_2(reply: &Reply) -> Reply {
    let all = |children: &[Reply]| Reply::Array(children.iter().map(in_version_2).collect());
    match reply {
        Reply::Array(children) | Reply::Set(children) | Reply::Push(children) => all(children),
        Reply::Map(pairs) => Reply::Array(
            pairs
                .iter()
                .flat_map(|(key, value)| [in_version_2(key), in_version_2(value)])
                .collect(),
        ),
        Reply::Double(number) => Reply::Bulk(number.to_string().into_bytes()),
        Reply::Boolean(value) => Reply::Integer((*value).into()),
        Reply::Verbatim { text, .. } => Reply::Bulk(text.clone()),
        other => other.clone(),
    }
}

fn any_reply() -> impl Strategy<Value = Reply> {
    let text = || "[ -~]{0,20}";
    let leaf = prop_oneof![
        Just(Reply::Null),
        "\\PC{0,20}".prop_map(Reply::Simple),
        any::<i64>().prop_map(Reply::Integer),
        (-20..20_i64).prop_map(Reply::Integer),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(Reply::Bulk),
        any::<f64>()
            .prop_filter("equal to itself", |number| !number.is_nan())
            .prop_map(Reply::Double),
        any::<bool>().prop_map(Reply::Boolean),
        "-?[0-9]{1,40}".prop_map(Reply::BigNumber),
        text().prop_map(|text| Reply::Verbatim {
            format: *b"txt",
            text: text.into_bytes(),
        }),
        ("[A-Z]{1,8}", text())
            .prop_map(|(code, message)| Reply::Error(ErrorReply { code, message })),
    ];
    leaf.prop_recursive(5, 60, 12, |reply| {
        let all = || prop::collection::vec(reply.clone(), 0..12);
        prop_oneof![
            all().prop_map(Reply::Array),
            all().prop_map(Reply::Set),
            all().prop_map(Reply::Push),
            prop::collection::vec((reply.clone(), reply.clone()), 0..6).prop_map(Reply::Map),
        ]
    })
}

proptest! {
    #[test]
    fn encoded_replies_round_trip(
        written in prop::collection::vec(any_reply(), 1..5),
        pieces in prop::collection::vec(1_usize..200, 1..20),
    ) {
        for proto in [Proto::Resp2, Proto::Resp3] {
            let mut bytes = Vec::new();
            written.iter().for_each(|reply| spell(reply, &mut bytes, proto));
            let expected: Vec<Reply> = match proto {
                Proto::Resp2 => written.iter().map(in_version_2).collect(),
                Proto::Resp3 => written.clone(),
            };
            prop_assert_eq!(replies(&bytes, &pieces), Ok(expected));
        }
    }

    #[test]
    fn splitting_the_input_does_not_change_the_result(
        bytes in prop::collection::vec(prop::sample::select(b"*$+-:_#,(=!~%>|0123\r\n\r\ntf.ab".to_vec()), 0..80),
        pieces in prop::collection::vec(1_usize..9, 1..9),
    ) {
        let small = ReplyLimits {
            value_bytes_max: 12,
            line_bytes_max: 6,
            elements_max: 9,
            reply_bytes_max: 40,
        };
        for limits in [ReplyLimits::default(), small] {
            let expected = tokens(&bytes, &[usize::MAX], limits);
            prop_assert_eq!(&tokens(&bytes, &pieces, limits), &expected);
            prop_assert_eq!(&tokens(&bytes, &[1], limits), &expected);
        }
    }
}
