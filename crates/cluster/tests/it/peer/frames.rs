//! The encoding of frames.

use bytes::{Bytes, BytesMut};
use larder_cluster::map::{Epoch, Incarnation, NodeId};
use larder_cluster::peer::{
    Exchange, Execution, FORMAT, FRAME_BYTES_MAX, Frame, FrameDecoder, FrameError, Hello, PeerInfo,
    Piece, PieceStatus, Replicate, ReplyEnds, Requests, StreamId, Welcome,
};

const STREAM: StreamId = StreamId { place: 3, turn: 9 };

/// Every kind of frame, with each of its variants.
fn frames() -> Vec<Frame> {
    let from = PeerInfo {
        node: NodeId(7),
        incarnation: Incarnation(1 << 40),
        core: 3,
        epoch: Epoch(12),
        lease_ms: 3_000,
        streams_max: 2_048,
        pieces_max: 4,
    };
    let mut frames = vec![
        Frame::Hello(Hello {
            format: FORMAT,
            cluster: "läden".to_owned(),
            receiver: NodeId(2),
            from,
        }),
        Frame::Welcome(Welcome {
            format: FORMAT,
            from,
        }),
        Frame::Refused("you are not wanted".to_owned()),
        Frame::Refused(String::new()),
        Frame::PieceAck(STREAM),
        Frame::Cancel(STREAM),
        Frame::Exchange(Exchange {
            from_core: 1,
            to_core: 65_535,
            conversation: u64::MAX,
            bytes: Bytes::from_static(b"message"),
        }),
        Frame::Replicate(Replicate {
            from_core: 0,
            to_core: 2,
            bytes: Bytes::new(),
        }),
        Frame::Ping(17),
        Frame::Pong(u64::MAX, 7),
    ];
    let clients = ["127.0.0.1:80", "[::1]:65535"].map(|it| it.parse().ok());
    for execution in [
        Execution::OneByOne,
        Execution::Transaction,
        Execution::Prefetch,
    ] {
        for client in clients.into_iter().chain([None]) {
            let requests = Requests {
                core: 5,
                execution,
                proto: 2,
                client,
                epoch: 7,
                versions: vec![("pymk".to_owned(), 42)],
                batch: Bytes::from_static(b"\x01\x00\x00\x00batch"),
            };
            frames.push(Frame::Requests(STREAM, requests));
        }
    }
    for (last, ends) in [
        (PieceStatus::Partial, &[][..]),
        (PieceStatus::Partial, &[0, 3][..]),
        (PieceStatus::Complete, &[5][..]),
        (PieceStatus::NotDone, &[][..]),
        (PieceStatus::Unknown, &[][..]),
    ] {
        for moment in [None, Some((4, 5))] {
            let piece = Piece {
                status: last,
                moment,
                ends: ReplyEnds::new(ends),
                bytes: Bytes::from_static(b"+OK\r\n"),
            };
            frames.push(Frame::Reply(STREAM, piece));
        }
    }
    frames
}

fn encoded(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}

fn decode(bytes: &[u8]) -> Result<Option<Frame>, FrameError> {
    FrameDecoder::new(FRAME_BYTES_MAX).next(&mut bytes.into())
}

#[test]
fn frames_round_trip_for_any_fragmentation() {
    let frames = frames();
    let all: Vec<u8> = frames.iter().flat_map(encoded).collect();
    for step in [1, 2, 5, 64, all.len()] {
        let (mut decoder, mut buffer) = (FrameDecoder::new(1_000), BytesMut::new());
        let mut decoded = Vec::new();
        for bytes in all.chunks(step) {
            buffer.extend_from_slice(bytes);
            while let Some(frame) = decoder.next(&mut buffer).expect("frames") {
                decoded.push(frame);
            }
        }
        assert_eq!(decoded, frames);
        assert!(buffer.is_empty());
    }
}

#[test]
fn an_incomplete_frame_waits_and_a_truncated_body_is_rejected() {
    for frame in frames() {
        let bytes = encoded(&frame);
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), Ok(None), "{frame:?} cut at {cut}");
        }
        // With a matching size, but a missing end.
        for cut in 5..bytes.len() {
            let mut short = bytes[..cut].to_vec();
            short[..4].copy_from_slice(&(cut as u32 - 4).to_le_bytes());
            let decoded = decode(&short);
            let has_payload = matches!(
                frame,
                Frame::Requests(..)
                    | Frame::Reply(..)
                    | Frame::Exchange(_)
                    | Frame::Replicate(_)
                    | Frame::Refused(_)
            );
            assert!(decoded.is_err() || has_payload, "{frame:?} cut at {cut}");
            assert_ne!(decoded, Ok(Some(frame.clone())));
        }
    }
}

#[test]
fn invalid_bytes_are_rejected_with_offset_and_reason() {
    let mut bytes = encoded(&Frame::Ping(1));
    let at = bytes.len() as u64;
    bytes.extend([1, 0, 0, 0, 99]);
    let (mut decoder, mut buffer) = (FrameDecoder::new(100), BytesMut::from(&bytes[..]));
    decoder
        .next(&mut buffer)
        .expect("a frame")
        .expect("a complete frame");
    let error = decoder.next(&mut buffer).expect_err("no such kind");
    assert_eq!((error.at, error.kind, error.size), (at, Some(99), 1));
    assert_eq!(
        error.to_string(),
        "invalid frame at byte 13 (kind 99, 1 bytes): the kind of the frame is unknown to this version"
    );
    // Rejected before the announced bytes arrive, and before memory is reserved for them.
    let mut http = BytesMut::from(&b"GET / HTTP/1.1\r\n\r\n"[..]);
    let error = FrameDecoder::new(4_096).next(&mut http).expect_err("long");
    assert!(error.to_string().contains("another protocol"), "{error}");
    assert!(decode(&[0; 4]).is_err(), "no kind");
}

#[test]
fn replies_end_within_their_piece_and_reasons_are_text() {
    let piece = |last, ends: &[usize], bytes: &'static [u8]| {
        encoded(&Frame::Reply(
            STREAM,
            Piece {
                status: last,
                moment: None,
                ends: ReplyEnds::new(ends),
                bytes: Bytes::from_static(bytes),
            },
        ))
    };
    for wrong in [
        piece(PieceStatus::Complete, &[3, 2], b"+OK\r\n"),
        piece(PieceStatus::Partial, &[6], b"+OK\r\n"),
        piece(PieceStatus::Unknown, &[1], b"gone"),
        piece(PieceStatus::NotDone, &[], b"\xff"),
    ] {
        assert!(decode(&wrong).is_err());
    }
}

#[test]
fn a_greeting_of_another_format_is_recognized_for_any_fields() {
    for kind in [1, 2] {
        let mut bytes = vec![9, 0, 0, 0, kind];
        bytes.extend(77_u32.to_le_bytes());
        bytes.extend(b"what");
        match decode(&bytes).expect("a frame") {
            Some(Frame::Hello(Hello { format, .. }) | Frame::Welcome(Welcome { format, .. })) => {
                assert_eq!(format, 77);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_payload_references_the_receive_buffer() {
    let batch = Bytes::from(vec![b'x'; 10_000]);
    let requests = Requests {
        core: 0,
        execution: Execution::OneByOne,
        proto: 2,
        client: None,
        epoch: 7,
        versions: vec![("pymk".to_owned(), 42)],
        batch,
    };
    let mut buffer = BytesMut::from(&encoded(&Frame::Requests(STREAM, requests))[..]);
    let there = buffer.as_ptr_range();
    let decoded = FrameDecoder::new(FRAME_BYTES_MAX).next(&mut buffer);
    match decoded.expect("a frame") {
        Some(Frame::Requests(_, requests)) => {
            assert_eq!(requests.batch.len(), 10_000);
            assert!(there.contains(&requests.batch.as_ptr()), "it was copied");
        }
        other => panic!("{other:?}"),
    }
}
