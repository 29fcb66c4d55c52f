//! Tests with a server that the test implements.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::{LocalSet, spawn_local};

use super::*;

/// Integers and values, in the order of arrival.
#[derive(Debug, Default, PartialEq)]
struct ReceivedTokens(Vec<String>);

impl Receiver for ReceivedTokens {
    fn take(&mut self, token: Token<'_>) {
        self.0.push(match token {
            Token::Bulk(bytes) => format!("{} bytes", bytes.len()),
            token => format!("{token:?}"),
        });
    }
}

fn received(tokens: &[&str]) -> Result<ReceivedTokens, Failure> {
    Ok(ReceivedTokens(
        tokens.iter().map(|&token| token.into()).collect(),
    ))
}

fn run<F: Future<Output = ()>>(test: impl FnOnce(TcpListener, Rc<Server>) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Rc::new(Server {
            address: listener.local_addr().unwrap().to_string(),
            password: None,
        });
        let limit = Duration::from_secs(20);
        tokio::time::timeout(limit, test(listener, server))
            .await
            .expect("it ends");
    });
}

fn ask(connection: &Connection, number: u32) -> Call<ReceivedTokens> {
    connection.call(1, ReceivedTokens::default(), |out| {
        command(out, &[&"GET", &number.to_string()]);
    })
}

fn is_unknown(reply: &Result<ReceivedTokens, Failure>) -> bool {
    matches!(reply, Err(Failure::Unknown(_)))
}

async fn read_some(stream: &mut TcpStream) -> String {
    let mut bytes = vec![0; 1 << 20];
    let read = stream.read(&mut bytes).await.unwrap();
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}

#[test]
fn calls_ready_together_share_one_write_and_receive_their_own_replies() {
    run(async |listener, server| {
        let connection = Rc::new(Connection::open(server).await.unwrap());
        let (mut peer, _) = listener.accept().await.unwrap();
        let calls: Vec<_> = (0..100)
            .map(|number| {
                let connection = connection.clone();
                spawn_local(async move { ask(&connection, number).await })
            })
            .collect();
        let requests = read_some(&mut peer).await;
        assert_eq!(requests.matches("GET").count(), 100);
        let replies: String = (0..100).map(|number| format!(":{number}\r\n")).collect();
        peer.write_all(replies.as_bytes()).await.unwrap();
        for (number, call) in calls.into_iter().enumerate() {
            assert_eq!(
                call.await.unwrap(),
                received(&[&format!("Integer({number})")])
            );
        }
    });
}

#[test]
fn dropping_a_call_does_not_shift_replies() {
    run(async |listener, server| {
        let connection = Connection::open(server).await.unwrap();
        let (mut peer, _) = listener.accept().await.unwrap();
        let (first, dropped, last) = (
            ask(&connection, 1),
            ask(&connection, 2),
            ask(&connection, 3),
        );
        drop(dropped);
        read_some(&mut peer).await;
        peer.write_all(b":1\r\n*2\r\n:7\r\n$1\r\nx\r\n:3\r\n")
            .await
            .unwrap();
        assert_eq!(first.await, received(&["Integer(1)"]));
        assert_eq!(last.await, received(&["Integer(3)"]));
    });
}

#[test]
fn after_a_lost_connection_pending_calls_are_unknown_and_the_next_reconnects() {
    run(async |listener, server| {
        let connection = Connection::open(server).await.unwrap();
        let (mut peer, _) = listener.accept().await.unwrap();
        let (answered, lost) = (ask(&connection, 1), ask(&connection, 2));
        read_some(&mut peer).await;
        peer.write_all(b":1\r\n$9\r\nhalf").await.unwrap();
        assert_eq!(answered.await, received(&["Integer(1)"]));
        drop(peer);
        assert!(is_unknown(&lost.await));
        let next = ask(&connection, 3);
        let (mut peer, _) = listener.accept().await.unwrap();
        let requests = read_some(&mut peer).await;
        assert_eq!(requests, "*2\r\n$3\r\nGET\r\n$1\r\n3\r\n");
        peer.write_all(b":3\r\n").await.unwrap();
        assert_eq!(next.await, received(&["Integer(3)"]));
    });
}

#[test]
fn calls_waiting_for_a_failed_connection_are_rejected() {
    run(async |listener, server| {
        let connection = Connection::open(server.clone()).await.unwrap();
        let (peer, _) = listener.accept().await.unwrap();
        let address = listener.local_addr().unwrap();
        drop((peer, listener));
        assert!(is_unknown(&ask(&connection, 1).await));
        for _ in 0..2 {
            assert!(matches!(
                ask(&connection, 2).await,
                Err(Failure::Refused(_))
            ));
        }
        let listener = TcpListener::bind(address).await.unwrap();
        let call = ask(&connection, 3);
        let (mut peer, _) = listener.accept().await.unwrap();
        read_some(&mut peer).await;
        peer.write_all(b":3\r\n").await.unwrap();
        assert_eq!(call.await, received(&["Integer(3)"]));
    });
}

#[test]
fn invalid_bytes_close_the_connection() {
    for nonsense in ["HTTP/1.1 400 Bad Request\r\n", ":1\r\n:2\r\n", "*1\r\n"] {
        run(async |listener, server| {
            let connection = Connection::open(server).await.unwrap();
            let (mut peer, _) = listener.accept().await.unwrap();
            let call = ask(&connection, 1);
            read_some(&mut peer).await;
            let nonsense = nonsense.repeat(20);
            peer.write_all(nonsense.as_bytes()).await.unwrap();
            let reply = call.await;
            assert!(is_unknown(&reply) || reply == received(&["Integer(1)"]));
            assert_eq!(read_some(&mut peer).await, "");
        });
    }
}

#[test]
fn replies_can_arrive_in_any_pieces_and_sizes() {
    run(async |listener, server| {
        let connection = Connection::open(server).await.unwrap();
        let (mut peer, _) = listener.accept().await.unwrap();
        let call = connection.call(2, ReceivedTokens::default(), |out| {
            out.extend_from_slice(b"x")
        });
        for byte in b"*2\r\n$3\r\nabc\r\n:5\r\n+OK\r\n" {
            peer.write_all(&[*byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        let expected = ["Array(2)", "3 bytes", "Integer(5)", "Simple([79, 75])"];
        assert_eq!(call.await, received(&expected));

        let size = 3 * INPUT_BYTES;
        let call = ask(&connection, 1);
        let mut reply = format!("${size}\r\n").into_bytes();
        reply.resize(reply.len() + size, b'z');
        reply.extend_from_slice(b"\r\n");
        let peer = spawn_local(async move {
            read_some(&mut peer).await;
            peer.write_all(&reply).await.unwrap();
            peer
        });
        assert_eq!(call.await, received(&[&format!("{size} bytes")]));
        drop(peer.await);
    });
}

#[test]
fn an_error_is_a_rejection_unless_the_command_may_have_executed() {
    for (reply, is_refused) in [
        ("-OOM command not allowed\r\n", true),
        ("-EXECABORT Transaction discarded\r\n", true),
        ("-IOERR the disk is full\r\n", false),
        ("-ERR user_script:1: no script: abc\r\n", false),
        ("*2\r\n:1\r\n-WRONGTYPE\r\n", false),
    ] {
        run(async |listener, server| {
            let connection = Connection::open(server).await.unwrap();
            let (mut peer, _) = listener.accept().await.unwrap();
            let (call, next) = (ask(&connection, 1), ask(&connection, 2));
            peer.write_all(reply.as_bytes()).await.unwrap();
            peer.write_all(b":2\r\n").await.unwrap();
            let ended = call.await;
            assert_eq!(
                matches!(ended, Err(Failure::Refused(_))),
                is_refused,
                "{reply}"
            );
            assert_eq!(is_unknown(&ended), !is_refused, "{reply}");
            assert_eq!(next.await, received(&["Integer(2)"]));
        });
    }
}
