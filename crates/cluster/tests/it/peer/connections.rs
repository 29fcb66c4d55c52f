//! One connection between two nodes, step by step.

use larder_cluster::map::{Epoch, Incarnation, NodeId};
use larder_cluster::peer::{
    Connection, Ended, Event, Exchange, FORMAT, Frame, Hello, Last, NotSent, Options, STREAMS_MIN,
};

use super::support::{PIECES_MAX, carry, events, options, pair, piece, requests, written};

const NOW: u64 = 1_000_000;

/// Returns the reasons that both sides report for a rejected greeting.
fn refused(one: Options, admit: Option<Incarnation>) -> (String, String) {
    let mut one = Connection::connect(one, NodeId(2), Incarnation(7), NOW);
    let asked = one.ask(requests("SET a 1")).expect("room");
    let mut other = Connection::accept(options(2), NOW);
    let mut there = carry(&mut one, &mut other, NOW);
    if let Some(Event::Hello(_)) = there.first() {
        other.admit(admit, Epoch(40), NOW);
        there = events(&mut other, NOW);
    }
    let here = carry(&mut other, &mut one, NOW);
    match (&here[..], &there[..]) {
        ([Event::Ended(here)], [Event::Ended(there)]) => {
            assert!(here.is_refused && !there.is_refused);
            assert_eq!(here.unsent, [asked], "nothing was sent, and it is said");
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
    assert_eq!(here, there, "both sides are told the same");
}

#[test]
fn strangers_are_refused_with_words() {
    let of = |change: &dyn Fn(&mut Options)| {
        let mut one = options(1);
        change(&mut one);
        one
    };
    let known = Some(Incarnation(7));
    let another = of(&|it| it.cluster = "another".to_owned());
    check_refused(another, known, "this node is of the cluster \"larder\"");
    check_refused(options(1), None, "no member in the map of epoch 40");
    let stale = Some(Incarnation(8));
    check_refused(
        options(1),
        stale,
        "has begun a later life (8) than yours (7)",
    );
    let same = of(&|it| it.me.node = NodeId(2));
    check_refused(same, known, "you say that you are node 2");

    // A later incarnation than the map's belongs to a node that has just registered.
    let (mut one, mut other) = (options(1), Connection::accept(options(2), NOW));
    one.me.incarnation = Incarnation(9);
    let mut one = Connection::connect(one, NodeId(2), Incarnation(7), NOW);
    carry(&mut one, &mut other, NOW);
    other.admit(known, Epoch(40), NOW);
    assert!(other.peer().is_some());
}

#[test]
fn a_node_at_a_wrong_address_is_refused_by_both() {
    // The accepting node is not the one that the other looks for.
    let mut one = Connection::connect(options(1), NodeId(3), Incarnation(7), NOW);
    let mut other = Connection::accept(options(2), NOW);
    let there = carry(&mut one, &mut other, NOW);
    assert!(matches!(&there[..], [Event::Ended(_)]), "{there:?}");
    let here = carry(&mut other, &mut one, NOW);
    let [Event::Ended(ended)] = &here[..] else {
        panic!("{here:?}");
    };
    assert!(
        ended
            .why
            .contains("you look for node 3, and this is node 2")
    );

    // The accepting node has an older incarnation.
    let mut one = Connection::connect(options(1), NodeId(2), Incarnation(9), NOW);
    let mut other = Connection::accept(options(2), NOW);
    carry(&mut one, &mut other, NOW);
    other.admit(Some(Incarnation(7)), Epoch(40), NOW);
    let here = carry(&mut other, &mut one, NOW);
    let [Event::Ended(ended)] = &here[..] else {
        panic!("{here:?}");
    };
    assert!(ended.why.contains("later life (9)"), "{}", ended.why);
}

#[test]
fn another_format_is_refused_and_told_who_is_to_be_brought_up() {
    for (format, words) in [
        (FORMAT - 1, "bring your larder to this node's version"),
        (FORMAT + 1, "bring this node's larder to your version first"),
    ] {
        let mut bytes = Vec::new();
        let hello = Hello {
            format,
            cluster: "larder".to_owned(),
            receiver: NodeId(2),
            from: options(1).me,
        };
        Frame::Hello(hello).encode(&mut bytes);
        let mut other = Connection::accept(options(2), NOW);
        other.buffer().extend_from_slice(&bytes);
        let told = events(&mut other, NOW);
        assert!(matches!(&told[..], [Event::Ended(ended)] if ended.why.contains(words)));
        assert!(
            !written(&mut other, usize::MAX).is_empty(),
            "it is told why"
        );
    }
}

#[test]
fn what_is_no_larder_is_told_apart() {
    let mut other = Connection::accept(options(2), NOW);
    other.buffer().extend_from_slice(b"*1\r\n$4\r\nPING\r\n");
    let told = events(&mut other, NOW);
    assert!(
        matches!(&told[..], [Event::Ended(ended)] if ended.why.contains("another protocol")),
        "{told:?}"
    );
}

#[test]
fn requests_are_answered_in_pieces_and_no_more_of_them_are_on_their_way_than_may_be() {
    let (mut one, mut other) = pair(NOW);
    let asked = one.ask(requests("RANGE a b")).expect("room");
    let there = carry(&mut one, &mut other, NOW);
    assert_eq!(there, [Event::Requests(asked, requests("RANGE a b"))]);
    for number in 0..PIECES_MAX {
        let text = number.to_string();
        other.answer(asked, piece(Last::No, &text)).expect("room");
    }
    let last = || piece(Last::Whole, "end");
    assert_eq!(other.answer(asked, last()), Err(NotSent::Full));
    assert_eq!(carry(&mut other, &mut one, NOW).len(), PIECES_MAX as usize);
    one.taken(asked);
    assert_eq!(carry(&mut one, &mut other, NOW), [Event::Room(asked)]);
    other.answer(asked, last()).expect("room again");
    assert_eq!(other.answer(asked, last()), Err(NotSent::Gone), "once");
    let here = carry(&mut other, &mut one, NOW);
    assert_eq!(here, [Event::Answer(asked, last())]);
    // An acknowledgement after the end is not sent, and the place is reused.
    one.taken(asked);
    assert!(written(&mut one, usize::MAX).is_empty());
    let again = one.ask(requests("GET a")).expect("room");
    assert_eq!((again.place, again.turn), (asked.place, asked.turn + 1));
}

#[test]
fn both_sides_ask_at_once_and_exchange_keeps_its_place() {
    let (mut one, mut other) = pair(NOW);
    let exchange = |number: u8| Exchange {
        from_core: 0,
        to_core: 1,
        conversation: 3,
        bytes: vec![number; 5_000].into(),
    };
    one.exchange(exchange(1)).expect("there");
    let mine = one.ask(requests("GET a")).expect("room");
    one.exchange(exchange(2)).expect("there");
    let yours = other.ask(requests("GET b")).expect("room");
    assert_eq!(mine, yours, "each side numbers its own");
    let there = carry(&mut one, &mut other, NOW);
    let expected = [
        Event::Exchange(exchange(1)),
        Event::Requests(mine, requests("GET a")),
        Event::Exchange(exchange(2)),
    ];
    assert_eq!(there, expected);
    let here = carry(&mut other, &mut one, NOW);
    assert_eq!(here, [Event::Requests(yours, requests("GET b"))]);
}

#[test]
fn who_cancels_hears_nothing_and_the_place_is_free_when_the_other_knows() {
    let (mut one, mut other) = pair(NOW);
    let asked = one.ask(requests("RANGE a b")).expect("room");
    carry(&mut one, &mut other, NOW);
    other.answer(asked, piece(Last::No, "1")).expect("room");
    one.cancel(asked);
    assert_eq!(carry(&mut other, &mut one, NOW), []);
    let next = one.ask(requests("GET a")).expect("room");
    assert_ne!(next.place, asked.place, "the other still has it");
    let there = carry(&mut one, &mut other, NOW);
    assert_eq!(there[0], Event::Cancelled(asked));
    assert_eq!(
        other.answer(asked, piece(Last::No, "2")),
        Err(NotSent::Gone)
    );
    assert_eq!(carry(&mut other, &mut one, NOW), []);
    let last = one.ask(requests("GET a")).expect("room");
    assert_eq!((last.place, last.turn), (asked.place, asked.turn + 1));

    // A response that was in flight when the request was cancelled.
    carry(&mut one, &mut other, NOW);
    other.answer(last, piece(Last::Whole, "1")).expect("room");
    one.cancel(last);
    assert_eq!(carry(&mut other, &mut one, NOW), []);
    assert_eq!(carry(&mut one, &mut other, NOW), []);
    assert!(one.peer().is_some() && other.peer().is_some());
}

#[test]
fn a_break_tells_what_was_not_sent_from_what_is_unknown() {
    let (mut one, mut other) = pair(NOW);
    let answered = one.ask(requests("SET a 1")).expect("room");
    let unknown = one.ask(requests("SET b 1")).expect("room");
    let cancelled = one.ask(requests("SET c 1")).expect("room");
    carry(&mut one, &mut other, NOW);
    other
        .answer(answered, piece(Last::Whole, "+OK"))
        .expect("room");
    carry(&mut other, &mut one, NOW);
    one.cancel(cancelled);
    written(&mut one, usize::MAX);
    let cut = one.ask(requests("SET d 1")).expect("room");
    // All but the last byte went to the socket, so the outcome is unknown.
    let left = one.queued_bytes();
    written(&mut one, left - 1);
    let unsent = one.ask(requests("SET e 1")).expect("room");
    one.broken("the socket was closed");
    let expected = Ended {
        why: "the socket was closed".to_owned(),
        is_refused: false,
        unsent: vec![unsent, cut],
        unknown: vec![unknown],
    };
    let [Event::Ended(mut ended)] = <[Event; 1]>::try_from(events(&mut one, NOW)).expect("one")
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
    assert_eq!(one.ask(requests("GET a")), Err(NotSent::Gone));
    assert!(events(&mut one, NOW).is_empty(), "told once");
}

#[test]
fn a_last_answer_that_came_before_the_break_counts() {
    let (mut one, mut other) = pair(NOW);
    let asked = one.ask(requests("SET a 1")).expect("room");
    carry(&mut one, &mut other, NOW);
    other
        .answer(asked, piece(Last::Whole, "+OK"))
        .expect("room");
    let bytes = written(&mut other, usize::MAX);
    one.buffer().extend_from_slice(&bytes);
    let here = events(&mut one, NOW);
    one.broken("the socket was closed");
    assert_eq!(here, [Event::Answer(asked, piece(Last::Whole, "+OK"))]);
    let told = events(&mut one, NOW);
    assert!(
        matches!(&told[..], [Event::Ended(ended)] if ended.unknown.is_empty() && ended.unsent.is_empty())
    );
}

#[test]
fn an_answer_to_nothing_and_one_too_many_break_the_connection() {
    let (mut one, mut other) = pair(NOW);
    let asked = one.ask(requests("GET a")).expect("room");
    carry(&mut one, &mut other, NOW);
    let mut twice = Vec::new();
    Frame::Answer(asked, piece(Last::Whole, "1")).encode(&mut twice);
    Frame::Answer(asked, piece(Last::Whole, "1")).encode(&mut twice);
    one.buffer().extend_from_slice(&twice);
    let told = events(&mut one, NOW);
    assert!(
        matches!(&told[..], [Event::Answer(..), Event::Ended(ended)] if ended.why.contains("after its end")),
        "{told:?}"
    );

    let (mut one, mut other) = pair(NOW);
    let asked = one.ask(requests("GET a")).expect("room");
    carry(&mut one, &mut other, NOW);
    let mut many = Vec::new();
    for _ in 0..=PIECES_MAX {
        Frame::Answer(asked, piece(Last::No, "1")).encode(&mut many);
    }
    one.buffer().extend_from_slice(&many);
    let told = events(&mut one, NOW);
    assert!(
        matches!(told.last(), Some(Event::Ended(ended)) if ended.unknown == [asked]),
        "{told:?}"
    );
}

#[test]
fn streams_and_bytes_that_wait_have_a_limit() {
    let (mut one, mut other) = pair(NOW);
    let asked: Vec<_> = (0..STREAMS_MIN)
        .map(|_| one.ask(requests("GET a")).expect("room"))
        .collect();
    assert_eq!(one.ask(requests("GET a")), Err(NotSent::Full));
    assert_eq!(carry(&mut one, &mut other, NOW).len(), asked.len());
    other
        .answer(asked[5], piece(Last::Whole, "1"))
        .expect("room");
    carry(&mut other, &mut one, NOW);
    one.ask(requests(&"x".repeat(2 << 20))).expect("room");
    assert_eq!(one.can_ask(), Err(NotSent::Full), "much waits");

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
fn silence_ends_a_connection_and_so_does_a_greeting_that_never_comes() {
    let (mut one, _) = pair(NOW);
    while one.next_tick_ms() < NOW + 5_000 {
        one.tick(one.next_tick_ms());
        assert!(events(&mut one, NOW).is_empty());
    }
    one.tick(NOW + 5_000);
    let told = events(&mut one, NOW);
    assert!(matches!(&told[..], [Event::Ended(ended)] if ended.why == "nothing came for 5000 ms"));
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
fn who_stood_still_hears_what_came_before_it_calls_another_silent() {
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
fn what_nobody_reads_is_no_silence() {
    let (mut one, _) = pair(NOW);
    for at in (0..20_000).step_by(1_000) {
        one.unread(NOW + at);
        one.tick(NOW + at);
    }
    assert!(!one.is_ended());
}

#[test]
fn a_reader_trusts_from_its_own_ping_and_an_owner_waits_longer() {
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
    owner.broken("cut");
    assert_eq!(
        owner.forgotten_after_ms(),
        theirs + 2_500 + 3_300,
        "the end does not shorten it"
    );
    reader.broken("cut");
    assert_eq!(reader.subscribed_until_ms(), 0, "who knows trusts no more");
}

#[test]
fn a_pong_that_was_not_asked_for_gives_no_lease() {
    let (mut reader, _) = pair(NOW);
    let mut bytes = Vec::new();
    Frame::Pong(NOW + 1_000_000, u64::MAX).encode(&mut bytes);
    reader.buffer().extend_from_slice(&bytes);
    let told = events(&mut reader, NOW);
    assert!(matches!(&told[..], [Event::Ended(_)]));
    assert_eq!(reader.subscribed_until_ms(), 0);
}
