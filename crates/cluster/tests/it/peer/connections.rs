//! One connection between two nodes, step by step.

use larder_cluster::map::{Epoch, Incarnation, NodeId};
use larder_cluster::peer::{
    Connection, ConnectionEnd, ConnectionEvent, Exchange, FORMAT, Frame, Hello, Options,
    PieceStatus, STREAMS_MIN, SendError,
};

use super::support::{PIECES_MAX, carry, events, options, pair, piece, requests, written};

const NOW: u64 = 1_000_000;

/// Returns the reasons that both sides report for a rejected greeting.
fn refused(one: Options, admit: Option<Incarnation>) -> (String, String) {
    let mut one = Connection::connect(one, NodeId(2), Incarnation(7), NOW);
    let id = one.send_requests(requests("SET a 1")).expect("room");
    let mut other = Connection::accept(options(2), NOW);
    let mut there = carry(&mut one, &mut other, NOW);
    if let Some(ConnectionEvent::Hello(_)) = there.first() {
        other.admit(admit, Epoch(40), NOW);
        there = events(&mut other, NOW);
    }
    let here = carry(&mut other, &mut one, NOW);
    match (&here[..], &there[..]) {
        ([ConnectionEvent::Ended(here)], [ConnectionEvent::Ended(there)]) => {
            assert!(here.is_refused && !there.is_refused);
            assert_eq!(here.unsent, [id], "nothing was sent, and that is reported");
            assert!(here.unknown.is_empty() && one.is_ended() && other.is_ended());
            (here.why.clone(), there.why.clone())
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn check_refused(one: Options, admit: Option<Incarnation>, words: &str) {
    let (here, there) = refused(one, admit);
    assert!(here.contains(words), "{here}");
    assert_eq!(here, there, "both sides receive the same reason");
}

#[test]
fn unknown_nodes_are_rejected_with_a_reason() {
    let of = |change: &dyn Fn(&mut Options)| {
        let mut one = options(1);
        change(&mut one);
        one
    };
    let known = Some(Incarnation(7));
    let another = of(&|it| it.cluster = "another".to_owned());
    check_refused(
        another,
        known,
        "this node belongs to the cluster \"larder\"",
    );
    check_refused(options(1), None, "not a member in the map of epoch 40");
    let stale = Some(Incarnation(8));
    check_refused(
        options(1),
        stale,
        "has a later incarnation (8) than yours (7)",
    );
    let same = of(&|it| it.local.node = NodeId(2));
    check_refused(same, known, "your connection claims to be node 2");

    // A later incarnation than the map's belongs to a node that has just registered.
    let (mut one, mut other) = (options(1), Connection::accept(options(2), NOW));
    one.local.incarnation = Incarnation(9);
    let mut one = Connection::connect(one, NodeId(2), Incarnation(7), NOW);
    carry(&mut one, &mut other, NOW);
    other.admit(known, Epoch(40), NOW);
    assert!(other.peer().is_some());
}

#[test]
fn a_node_at_a_wrong_address_is_rejected_by_both_sides() {
    // The accepting node is not the one that the other looks for.
    let mut one = Connection::connect(options(1), NodeId(3), Incarnation(7), NOW);
    let mut other = Connection::accept(options(2), NOW);
    let there = carry(&mut one, &mut other, NOW);
    assert!(
        matches!(&there[..], [ConnectionEvent::Ended(_)]),
        "{there:?}"
    );
    let here = carry(&mut other, &mut one, NOW);
    let [ConnectionEvent::Ended(ended)] = &here[..] else {
        panic!("{here:?}");
    };
    assert!(
        ended
            .why
            .contains("your connection is to node 3, and this is node 2")
    );

    // The accepting node has an older incarnation.
    let mut one = Connection::connect(options(1), NodeId(2), Incarnation(9), NOW);
    let mut other = Connection::accept(options(2), NOW);
    carry(&mut one, &mut other, NOW);
    other.admit(Some(Incarnation(7)), Epoch(40), NOW);
    let here = carry(&mut other, &mut one, NOW);
    let [ConnectionEvent::Ended(ended)] = &here[..] else {
        panic!("{here:?}");
    };
    assert!(ended.why.contains("later incarnation (9)"), "{}", ended.why);
}

#[test]
fn another_format_is_rejected_naming_the_side_to_upgrade() {
    for (format, words) in [
        (FORMAT - 1, "upgrade your node to this node's version"),
        (FORMAT + 1, "upgrade this node to your version first"),
    ] {
        let mut bytes = Vec::new();
        let hello = Hello {
            format,
            cluster: "larder".to_owned(),
            receiver: NodeId(2),
            from: options(1).local,
        };
        Frame::Hello(hello).encode(&mut bytes);
        let mut other = Connection::accept(options(2), NOW);
        other.buffer().extend_from_slice(&bytes);
        let received = events(&mut other, NOW);
        assert!(
            matches!(&received[..], [ConnectionEvent::Ended(ended)] if ended.why.contains(words))
        );
        assert!(
            !written(&mut other, usize::MAX).is_empty(),
            "the reason is sent"
        );
    }
}

#[test]
fn bytes_of_another_protocol_are_recognized() {
    let mut other = Connection::accept(options(2), NOW);
    other.buffer().extend_from_slice(b"*1\r\n$4\r\nPING\r\n");
    let received = events(&mut other, NOW);
    assert!(
        matches!(&received[..], [ConnectionEvent::Ended(ended)] if ended.why.contains("another protocol")),
        "{received:?}"
    );
}

#[test]
fn replies_are_sent_in_pieces_within_the_window() {
    let (mut one, mut other) = pair(NOW);
    let id = one.send_requests(requests("RANGE a b")).expect("room");
    let there = carry(&mut one, &mut other, NOW);
    assert_eq!(
        there,
        [ConnectionEvent::Requests(id, requests("RANGE a b"))]
    );
    for number in 0..PIECES_MAX {
        let text = number.to_string();
        other
            .send_reply(id, piece(PieceStatus::Partial, &text))
            .expect("room");
    }
    let last = || piece(PieceStatus::Complete, "end");
    assert_eq!(other.send_reply(id, last()), Err(SendError::Full));
    assert_eq!(carry(&mut other, &mut one, NOW).len(), PIECES_MAX as usize);
    one.acknowledge_piece(id);
    assert_eq!(
        carry(&mut one, &mut other, NOW),
        [ConnectionEvent::Writable(id)]
    );
    other.send_reply(id, last()).expect("room again");
    assert_eq!(other.send_reply(id, last()), Err(SendError::Closed), "once");
    let here = carry(&mut other, &mut one, NOW);
    assert_eq!(here, [ConnectionEvent::Reply(id, last())]);
    // An acknowledgement after the end is not sent, and the place is reused.
    one.acknowledge_piece(id);
    assert!(written(&mut one, usize::MAX).is_empty());
    let again = one.send_requests(requests("GET a")).expect("room");
    assert_eq!((again.place, again.turn), (id.place, id.turn + 1));
}

#[test]
fn both_sides_send_requests_concurrently_and_exchange_messages_keep_their_order() {
    let (mut one, mut other) = pair(NOW);
    let exchange = |number: u8| Exchange {
        from_core: 0,
        to_core: 1,
        conversation: 3,
        bytes: vec![number; 5_000].into(),
    };
    one.exchange(exchange(1)).expect("there");
    let mine = one.send_requests(requests("GET a")).expect("room");
    one.exchange(exchange(2)).expect("there");
    let yours = other.send_requests(requests("GET b")).expect("room");
    assert_eq!(mine, yours, "each side numbers its own");
    let there = carry(&mut one, &mut other, NOW);
    let expected = [
        ConnectionEvent::Exchange(exchange(1)),
        ConnectionEvent::Requests(mine, requests("GET a")),
        ConnectionEvent::Exchange(exchange(2)),
    ];
    assert_eq!(there, expected);
    let here = carry(&mut other, &mut one, NOW);
    assert_eq!(here, [ConnectionEvent::Requests(yours, requests("GET b"))]);
}

#[test]
fn a_cancelled_stream_reports_nothing_and_its_place_is_reused_after_confirmation() {
    let (mut one, mut other) = pair(NOW);
    let id = one.send_requests(requests("RANGE a b")).expect("room");
    carry(&mut one, &mut other, NOW);
    other
        .send_reply(id, piece(PieceStatus::Partial, "1"))
        .expect("room");
    one.cancel(id);
    assert_eq!(carry(&mut other, &mut one, NOW), []);
    let next = one.send_requests(requests("GET a")).expect("room");
    assert_ne!(next.place, id.place, "the other still has it");
    let there = carry(&mut one, &mut other, NOW);
    assert_eq!(there[0], ConnectionEvent::Cancelled(id));
    assert_eq!(
        other.send_reply(id, piece(PieceStatus::Partial, "2")),
        Err(SendError::Closed)
    );
    assert_eq!(carry(&mut other, &mut one, NOW), []);
    let last = one.send_requests(requests("GET a")).expect("room");
    assert_eq!((last.place, last.turn), (id.place, id.turn + 1));

    // A response that was in flight when the request was cancelled.
    carry(&mut one, &mut other, NOW);
    other
        .send_reply(last, piece(PieceStatus::Complete, "1"))
        .expect("room");
    one.cancel(last);
    assert_eq!(carry(&mut other, &mut one, NOW), []);
    assert_eq!(carry(&mut one, &mut other, NOW), []);
    assert!(one.peer().is_some() && other.peer().is_some());
}

#[test]
fn a_broken_connection_separates_unsent_from_unknown_requests() {
    let (mut one, mut other) = pair(NOW);
    let answered = one.send_requests(requests("SET a 1")).expect("room");
    let unknown = one.send_requests(requests("SET b 1")).expect("room");
    let cancelled = one.send_requests(requests("SET c 1")).expect("room");
    carry(&mut one, &mut other, NOW);
    other
        .send_reply(answered, piece(PieceStatus::Complete, "+OK"))
        .expect("room");
    carry(&mut other, &mut one, NOW);
    one.cancel(cancelled);
    written(&mut one, usize::MAX);
    let cut = one.send_requests(requests("SET d 1")).expect("room");
    // All but the last byte went to the socket, so the outcome is unknown.
    let left = one.queued_bytes();
    written(&mut one, left - 1);
    let unsent = one.send_requests(requests("SET e 1")).expect("room");
    one.record_failure("the socket was closed");
    let expected = ConnectionEnd {
        why: "the socket was closed".to_owned(),
        is_refused: false,
        unsent: vec![unsent, cut],
        unknown: vec![unknown],
    };
    let [ConnectionEvent::Ended(mut ended)] =
        <[ConnectionEvent; 1]>::try_from(events(&mut one, NOW)).expect("one")
    else {
        panic!("no end");
    };
    ended.unsent.sort_by_key(|id| std::cmp::Reverse(id.place));
    let mut expected = expected;
    expected
        .unsent
        .sort_by_key(|id| std::cmp::Reverse(id.place));
    assert_eq!(ended, expected);
    assert!(written(&mut one, usize::MAX).is_empty(), "never sent");
    assert_eq!(one.send_requests(requests("GET a")), Err(SendError::Closed));
    assert!(events(&mut one, NOW).is_empty(), "reported once");
}

#[test]
fn a_final_piece_received_before_the_break_counts() {
    let (mut one, mut other) = pair(NOW);
    let id = one.send_requests(requests("SET a 1")).expect("room");
    carry(&mut one, &mut other, NOW);
    other
        .send_reply(id, piece(PieceStatus::Complete, "+OK"))
        .expect("room");
    let bytes = written(&mut other, usize::MAX);
    one.buffer().extend_from_slice(&bytes);
    let here = events(&mut one, NOW);
    one.record_failure("the socket was closed");
    assert_eq!(
        here,
        [ConnectionEvent::Reply(
            id,
            piece(PieceStatus::Complete, "+OK")
        )]
    );
    let received = events(&mut one, NOW);
    assert!(
        matches!(&received[..], [ConnectionEvent::Ended(ended)] if ended.unknown.is_empty() && ended.unsent.is_empty())
    );
}

#[test]
fn unexpected_replies_and_excess_pieces_end_the_connection() {
    let (mut one, mut other) = pair(NOW);
    let id = one.send_requests(requests("GET a")).expect("room");
    carry(&mut one, &mut other, NOW);
    let mut twice = Vec::new();
    Frame::Reply(id, piece(PieceStatus::Complete, "1")).encode(&mut twice);
    Frame::Reply(id, piece(PieceStatus::Complete, "1")).encode(&mut twice);
    one.buffer().extend_from_slice(&twice);
    let received = events(&mut one, NOW);
    assert!(
        matches!(&received[..], [ConnectionEvent::Reply(..), ConnectionEvent::Ended(ended)] if ended.why.contains("a reply has no open stream")),
        "{received:?}"
    );

    let (mut one, mut other) = pair(NOW);
    let id = one.send_requests(requests("GET a")).expect("room");
    carry(&mut one, &mut other, NOW);
    let mut many = Vec::new();
    for _ in 0..=PIECES_MAX {
        Frame::Reply(id, piece(PieceStatus::Partial, "1")).encode(&mut many);
    }
    one.buffer().extend_from_slice(&many);
    let received = events(&mut one, NOW);
    assert!(
        matches!(received.last(), Some(ConnectionEvent::Ended(ended)) if ended.unknown == [id]),
        "{received:?}"
    );
}

#[test]
fn open_streams_and_queued_bytes_are_limited() {
    let (mut one, mut other) = pair(NOW);
    let id: Vec<_> = (0..STREAMS_MIN)
        .map(|_| one.send_requests(requests("GET a")).expect("room"))
        .collect();
    assert_eq!(one.send_requests(requests("GET a")), Err(SendError::Full));
    assert_eq!(carry(&mut one, &mut other, NOW).len(), id.len());
    other
        .send_reply(id[5], piece(PieceStatus::Complete, "1"))
        .expect("room");
    carry(&mut other, &mut one, NOW);
    one.send_requests(requests(&"x".repeat(2 << 20)))
        .expect("room");
    assert_eq!(one.check_can_request(), Err(SendError::Full), "much waits");

    // A peer that does not read is disconnected before its queue takes all memory.
    let message = Exchange {
        from_core: 0,
        to_core: 0,
        conversation: 0,
        bytes: vec![0; 1 << 20].into(),
    };
    let sent = (0..100).take_while(|_| one.exchange(message.clone()).is_ok());
    assert!(sent.count() < 20);
    assert!(one.is_ended());
}

#[test]
fn silence_or_a_missing_greeting_ends_a_connection() {
    let (mut one, _) = pair(NOW);
    while one.next_tick_ms() < NOW + 5_000 {
        one.tick(one.next_tick_ms());
        assert!(events(&mut one, NOW).is_empty());
    }
    one.tick(NOW + 5_000);
    let received = events(&mut one, NOW);
    assert!(
        matches!(&received[..], [ConnectionEvent::Ended(ended)] if ended.why == "the peer sent nothing for 5000 ms")
    );
    assert_eq!(one.next_tick_ms(), u64::MAX);

    let mut other = Connection::accept(options(2), NOW);
    for at in [1_000, 1_999] {
        other.tick(NOW + at);
        assert!(!other.is_ended());
    }
    other.tick(NOW + 2_000);
    assert!(other.is_ended());
}

/// A core had a long turn, or its process was suspended: frames that arrived meanwhile may not have been read yet.
#[test]
fn a_stalled_node_reads_pending_bytes_before_it_times_out_a_peer() {
    let (mut one, _) = pair(NOW);
    one.tick(NOW + 1_000);
    one.tick(NOW + 60_000);
    assert!(!one.is_ended());
    let mut at = NOW + 60_000;
    while !one.is_ended() {
        at = one.next_tick_ms();
        one.tick(at);
    }
    assert!(
        (NOW + 61_000..NOW + 65_000).contains(&at),
        "{} ms after it went on, a dead node is found out",
        at - NOW - 60_000
    );

    let mut other = Connection::accept(options(2), NOW);
    other.tick(NOW + 60_000);
    assert!(!other.is_ended(), "the greeting may be there");
    other.tick(other.next_tick_ms());
    assert!(other.is_ended());
}

#[test]
fn unread_bytes_do_not_count_as_silence() {
    let (mut one, _) = pair(NOW);
    for at in (0..20_000).step_by(1_000) {
        one.record_read_pause(NOW + at);
        one.tick(NOW + at);
    }
    assert!(!one.is_ended());
}

#[test]
fn a_reader_counts_from_its_own_ping_and_an_owner_waits_longer() {
    let (mut reader, mut owner) = pair(NOW);
    assert_eq!(reader.subscribed_until_ms(), 0, "nothing was answered yet");
    // The owner's clock shows a completely different time.
    let theirs = 77;
    carry(&mut reader, &mut owner, theirs);
    assert_eq!(owner.forgotten_after_ms(), theirs + 3_000 + 300);
    carry(&mut owner, &mut reader, NOW + 900);
    assert_eq!(reader.subscribed_until_ms(), NOW + 3_000);
    // Pings continue without an answer, so the lease is not extended.
    reader.tick(NOW + 1_000);
    reader.tick(NOW + 2_000);
    assert_eq!(reader.subscribed_until_ms(), NOW + 3_000);
    carry(&mut reader, &mut owner, theirs + 2_500);
    owner.record_failure("cut");
    assert_eq!(
        owner.forgotten_after_ms(),
        theirs + 2_500 + 3_300,
        "the end does not shorten it"
    );
    reader.record_failure("cut");
    assert_eq!(
        reader.subscribed_until_ms(),
        0,
        "a reader whose connection ended trusts no rows"
    );
}

#[test]
fn an_unsolicited_pong_extends_no_lease() {
    let (mut reader, _) = pair(NOW);
    let mut bytes = Vec::new();
    Frame::Pong(NOW + 1_000_000, u64::MAX).encode(&mut bytes);
    reader.buffer().extend_from_slice(&bytes);
    let received = events(&mut reader, NOW);
    assert!(matches!(&received[..], [ConnectionEvent::Ended(_)]));
    assert_eq!(reader.subscribed_until_ms(), 0);
}
