//! Connections between nodes over real sockets: both ends are in this process and connect over loopback.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use larder_cluster::map::{Epoch, Incarnation, NodeId};
use larder_cluster::peer::{
    Exchange, Execution, Options, PeerInfo, Piece, PieceStatus, ReplyEnds, Requests, STREAMS_MIN,
    SendError,
};
use larder_server::cluster::{
    Core, Failure, Incoming, Link, Members, PeerIdentity, Peers, Responder, ResponseStream, Tls,
    TlsFiles, accept,
};
use larder_testing::certificates::Authority;
use larder_testing::proxy::Proxy;
use tokio::runtime::LocalOptions;
use tokio::task::{spawn_local, yield_now};

const PIECES_MAX: u32 = 4;
const ONE: NodeId = NodeId(1);
const TWO: NodeId = NodeId(2);

/// The cluster map that all nodes of a test share.
#[derive(Clone, Default)]
struct TestMap(Rc<RefCell<HashMap<NodeId, PeerIdentity>>>);

impl Members for TestMap {
    fn identity(&self, node: NodeId) -> Option<PeerIdentity> {
        self.0.borrow().get(&node).cloned()
    }

    fn epoch(&self) -> Epoch {
        Epoch(5)
    }
}

/// A node with one core. The text of a request determines its reply.
struct TestNode {
    peers: Rc<Peers>,
    events: Rc<NodeEvents>,
}

#[derive(Default)]
struct NodeEvents {
    connected: Cell<u32>,
    ended: RefCell<Vec<Rc<str>>>,
    exchanged: RefCell<Vec<u64>>,
    held: RefCell<Vec<Responder>>,
    /// Pieces of long answers that were passed to the connection.
    pieces: Cell<u32>,
    gone: Cell<u32>,
}

impl TestNode {
    async fn new(map: &TestMap, id: NodeId, tls: Option<Tls>) -> TestNode {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a free port");
        let known = PeerIdentity {
            name: format!("node-{id}"),
            incarnation: Incarnation(1),
            address: listener.local_addr().expect("bound").to_string(),
        };
        map.0.borrow_mut().insert(id, known);
        let core = Core::new(options(id), map.clone(), tls, || 7);
        let node = TestNode {
            peers: Peers::new(core.clone()),
            events: Rc::default(),
        };
        spawn_local(accept(core.clone(), listener));
        spawn_local(serve(core, node.events.clone()));
        node
    }
}

fn options(id: NodeId) -> Options {
    Options {
        cluster: "larder".to_owned(),
        local: PeerInfo {
            node: id,
            incarnation: Incarnation(1),
            core: 0,
            epoch: Epoch(5),
            lease_ms: 10_000,
            streams_max: STREAMS_MIN,
            pieces_max: PIECES_MAX,
        },
        ping_every_ms: 1_000,
        margin_ms: 100,
        silence_ms: 20_000,
        greeting_ms: 10_000,
        queued_bytes_max: 8 << 20,
    }
}

async fn serve(core: Rc<Core>, events: Rc<NodeEvents>) {
    loop {
        match core.arrivals().next().await {
            Incoming::Connected(..) => events.connected.set(events.connected.get() + 1),
            Incoming::Ended(_, why) => events.ended.borrow_mut().push(why),
            Incoming::Exchange(_, exchange) => {
                let (number, _) = exchange.bytes.split_first_chunk().expect("a number");
                events
                    .exchanged
                    .borrow_mut()
                    .push(u64::from_le_bytes(*number));
            }
            Incoming::Replicate(..) => {}
            Incoming::Requests(requests, mut answering) => match &requests.batch[..] {
                b"hold" => events.held.borrow_mut().push(answering),
                b"drop" => drop(answering),
                b"long" => {
                    spawn_local(send_long_reply(answering, events.clone()));
                }
                _ => answering
                    .try_send(piece(PieceStatus::Complete, requests.batch))
                    .expect("room"),
            },
        }
    }
}

/// Sends ten times as many pieces as may be in flight.
async fn send_long_reply(mut answering: Responder, events: Rc<NodeEvents>) {
    for number in 0..10 * PIECES_MAX {
        let last = if number + 1 == 10 * PIECES_MAX {
            PieceStatus::Complete
        } else {
            PieceStatus::Partial
        };
        let bytes = vec![number as u8; 20_000].into();
        if answering.send(piece(last, bytes)).await == Err(SendError::Closed) {
            return events.gone.set(events.gone.get() + 1);
        }
        events.pieces.set(events.pieces.get() + 1);
    }
}

fn piece(last: PieceStatus, bytes: bytes::Bytes) -> Piece {
    let ends = match last {
        PieceStatus::Complete => ReplyEnds::new(&[bytes.len()]),
        _ => ReplyEnds::default(),
    };
    Piece {
        status: last,
        moment: None,
        ends,
        bytes,
    }
}

fn requests(text: &str) -> Requests {
    Requests {
        core: 0,
        execution: Execution::OneByOne,
        proto: 2,
        client: None,
        epoch: 7,
        versions: vec![("pymk".to_owned(), 42)],
        batch: text.as_bytes().to_vec().into(),
    }
}

async fn send_request(node: &TestNode, text: &str) -> Result<ResponseStream, Failure> {
    node.peers.request(TWO, requests(text)).await
}

async fn request_reply(node: &TestNode, text: &str) -> Result<Option<Piece>, Failure> {
    send_request(node, text).await?.next().await
}

#[track_caller]
fn check_not_done(result: Result<Option<Piece>, Failure>, words: &str) {
    match result {
        Err(Failure::NotDone(why)) => assert!(why.contains(words), "{why}"),
        other => panic!("{other:?}"),
    }
}

fn local(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build_local(LocalOptions::default());
    let limited = async { tokio::time::timeout(Duration::from_secs(60), test).await };
    let ended = runtime.expect("a runtime").block_on(limited);
    ended.expect("it hangs");
}

async fn until(mut done: impl FnMut() -> bool) {
    while !done() {
        yield_now().await;
    }
}

/// Returns the TLS setup of a node that trusts `authority` and has a certificate signed by it.
fn tls(authority: &Authority, name: &str) -> Tls {
    tls_signed_by(authority, authority, name)
}

fn tls_signed_by(trusted: &Authority, signer: &Authority, name: &str) -> Tls {
    let signed = signer.sign(name);
    // Each node has separate files, because replaced files are read again.
    let folder = tempfile::tempdir_in(trusted.path(".")).expect("a folder");
    let folder = folder.keep();
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let files = TlsFiles {
        authority: trusted.path("ca.pem"),
        certificate: file("node.pem", &signed.certificate),
        key: file("node.key", &signed.key),
    };
    Tls::open(&files).expect("they fit")
}

/// Returns two nodes that trust each other, with or without TLS.
async fn two(with_tls: bool) -> (TestNode, TestNode, TestMap) {
    let (map, authority) = (TestMap::default(), Authority::new());
    let tls = |name| with_tls.then(|| tls(&authority, name));
    let one = TestNode::new(&map, ONE, tls("node-1")).await;
    let two = TestNode::new(&map, TWO, tls("node-2")).await;
    (one, two, map)
}

#[test]
fn excess_streams_share_one_connection_and_receive_their_own_replies() {
    for with_tls in [false, true] {
        local(async {
            let (one, two, _) = two(with_tls).await;
            let one = Rc::new(one);
            let asks: Vec<_> = (0..1_500)
                .map(|number| {
                    let one = one.clone();
                    spawn_local(async move {
                        let text = format!("echo {number}");
                        let mut answer = send_request(&one, &text).await.expect("sent");
                        let piece = answer.next().await.expect("answered").expect("a piece");
                        assert_eq!(piece.bytes, text.as_bytes());
                        assert_eq!(answer.next().await, Ok(None));
                    })
                })
                .collect();
            for ask in asks {
                ask.await.expect("answered");
            }
            assert_eq!(two.events.connected.get(), 1, "one connection");
            assert!(
                one.peers
                    .link(TWO)
                    .expect("the link exists")
                    .peer()
                    .is_some()
            );
        });
    }
}

#[test]
fn small_and_large_exchange_messages_stay_in_order() {
    for with_tls in [false, true] {
        local(async {
            let (one, two, _) = two(with_tls).await;
            let link: Rc<Link> = one.peers.link(TWO).expect("begun");
            for number in 0..2_000_u64 {
                let mut bytes = number.to_le_bytes().to_vec();
                bytes.resize(8 + (number as usize * 7) % 9_000, b'x');
                let message = Exchange {
                    from_core: 0,
                    to_core: 3,
                    conversation: 1,
                    bytes: bytes.into(),
                };
                link.exchange(message).expect("the link exists");
                if number % 100 == 0 {
                    yield_now().await;
                }
            }
            until(|| two.events.exchanged.borrow().len() == 2_000).await;
            assert!(two.events.exchanged.borrow().iter().copied().eq(0..2_000));
            until(|| link.subscribed_until_ms() > 0).await;
        });
    }
}

#[test]
fn a_slow_reader_delays_only_its_own_reply() {
    local(async {
        let (one, two, _) = two(true).await;
        let mut long = send_request(&one, "long").await.expect("sent");
        for number in 0..20 {
            let piece = request_reply(&one, &format!("echo {number}")).await;
            assert!(piece.expect("answered").is_some());
        }
        assert_eq!(two.events.pieces.get(), PIECES_MAX, "none was taken");
        let mut count = 0;
        while let Some(piece) = long.next().await.expect("answered") {
            assert!(piece.bytes.iter().all(|byte| *byte == count as u8));
            count += 1;
        }
        assert_eq!(count, 10 * PIECES_MAX);

        // Dropping the answer cancels it at the sender.
        let long = send_request(&one, "long").await.expect("sent");
        request_reply(&one, "echo").await.expect("answered");
        drop(long);
        until(|| two.events.gone.get() == 1).await;
    });
}

#[test]
fn an_unreachable_node_is_retried_immediately_after_it_connects() {
    local(async {
        let (one, two, map) = two(false).await;
        let real = map.0.borrow()[&TWO].clone();
        let closed = format!("127.0.0.1:{}", larder_testing::free_port());
        let meet = |address: &str, life| {
            let known = PeerIdentity {
                address: address.to_owned(),
                incarnation: Incarnation(life),
                ..real.clone()
            };
            map.0.borrow_mut().insert(TWO, known);
        };
        // Several failures make the backoff longer than the time between two lines of this test.
        for life in 2..6 {
            meet(&closed, life);
            check_not_done(request_reply(&one, "echo").await, "refused");
        }
        let lost = || matches!(one.peers.link(TWO), Err(Failure::NotDone(_)));
        until(lost).await;
        meet(&closed, 6);
        assert!(
            one.peers.link(TWO).is_ok(),
            "a new incarnation is contacted immediately"
        );
        check_not_done(request_reply(&one, "echo").await, "refused");
        until(lost).await;
        one.peers.record_contact(TWO);
        meet(&real.address, 6);
        assert!(one.peers.link(TWO).is_ok(), "it has connected to this one");
        drop(two);
    });
}

#[test]
fn an_abandoned_request_has_an_unknown_outcome() {
    local(async {
        let (one, _two, _) = two(false).await;
        let result = request_reply(&one, "drop").await;
        assert!(
            matches!(&result, Err(Failure::Unknown(why)) if why.contains("before its response was complete"))
        );
        assert!(request_reply(&one, "echo").await.is_ok(), "others go on");
    });
}

#[test]
fn a_lost_connection_leaves_sent_requests_unknown_and_reconnects() {
    local(async {
        let (one, two, map) = two(true).await;
        let address = map.identity(TWO).expect("known").address;
        let proxy = Proxy::to(address);
        let through = proxy.address();
        if let Some(known) = map.0.borrow_mut().get_mut(&TWO) {
            known.address = through;
        }
        let mut held = send_request(&one, "hold").await.expect("sent");
        request_reply(&one, "echo").await.expect("answered");
        proxy.cut();
        match held.next().await {
            Err(Failure::Unknown(why)) => assert!(why.contains("node node-2 at"), "{why}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(held.next().await, Ok(None), "the end is reported once");
        check_not_done(request_reply(&one, "echo").await, "node-2");
        until(|| !two.events.ended.borrow().is_empty()).await;
        proxy.heal();
        while request_reply(&one, "echo").await.is_err() {
            yield_now().await;
        }
        assert_eq!(two.events.connected.get(), 2);
    });
}

#[test]
fn a_certificate_of_another_authority_is_rejected_with_advice() {
    local(async {
        let (map, ours, theirs) = (TestMap::default(), Authority::new(), Authority::new());
        let one = TestNode::new(&map, ONE, Some(tls(&ours, "node-1"))).await;
        let _two = TestNode::new(&map, TWO, Some(tls(&theirs, "node-2"))).await;
        check_not_done(
            request_reply(&one, "echo").await,
            "its certificate was signed by an authority that this node does not trust; give all nodes certificates of one authority",
        );

        // The other direction: the accepting node does not trust the connecting one.
        let map = TestMap::default();
        let one = TestNode::new(&map, ONE, Some(tls_signed_by(&ours, &theirs, "node-1"))).await;
        let _two = TestNode::new(&map, TWO, Some(tls(&ours, "node-2"))).await;
        let result = request_reply(&one, "echo").await.expect_err("refused");
        let words = "it does not trust the authority that signed this node's certificate";
        assert!(result.to_string().contains(words), "{result}");
    });
}

#[test]
fn a_node_with_the_certificate_of_another_node_is_rejected() {
    local(async {
        let (map, authority) = (TestMap::default(), Authority::new());
        let one = TestNode::new(&map, ONE, Some(tls(&authority, "node-3"))).await;
        let _two = TestNode::new(&map, TWO, Some(tls(&authority, "node-2"))).await;
        let result = request_reply(&one, "echo").await;
        check_not_done(
            result,
            "your certificate names neither node-1 nor 127.0.0.1",
        );

        let map = TestMap::default();
        let one = TestNode::new(&map, ONE, Some(tls(&authority, "node-1"))).await;
        let _two = TestNode::new(&map, TWO, Some(tls(&authority, "node-3"))).await;
        check_not_done(
            request_reply(&one, "echo").await,
            "names another node or host",
        );

        // A certificate for the node's host is accepted as well.
        let map = TestMap::default();
        let one = TestNode::new(&map, ONE, Some(tls(&authority, "127.0.0.1"))).await;
        let _two = TestNode::new(&map, TWO, Some(tls(&authority, "127.0.0.1"))).await;
        assert!(request_reply(&one, "echo").await.is_ok());
    });
}

#[test]
fn tls_on_only_one_side_is_reported() {
    local(async {
        let (map, authority) = (TestMap::default(), Authority::new());
        let one = TestNode::new(&map, ONE, Some(tls(&authority, "node-1"))).await;
        let _two = TestNode::new(&map, TWO, None).await;
        let result = request_reply(&one, "echo").await.expect_err("refused");
        assert!(matches!(result, Failure::NotDone(_)), "{result}");

        let map = TestMap::default();
        let one = TestNode::new(&map, ONE, None).await;
        let _two = TestNode::new(&map, TWO, Some(tls(&authority, "node-2"))).await;
        check_not_done(request_reply(&one, "echo").await, "TLS on one side only");
    });
}

#[test]
fn connections_from_and_to_non_members_are_rejected() {
    local(async {
        let (one, _two, map) = two(false).await;
        check_not_done(
            one.peers
                .request(NodeId(9), requests("echo"))
                .await
                .map(|_| None),
            "node 9 is not a member",
        );
        let stranger = TestNode::new(&map, NodeId(3), None).await;
        map.0.borrow_mut().remove(&NodeId(3));
        let result = request_reply(&stranger, "echo").await;
        check_not_done(result, "rejects this node: node 3 is not a member");
    });
}
