//! Tests the client with misbehaving servers, each a few lines on a loopback port.

mod cluster;
mod fakes;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use larder_client::{AdminClient, Error, Reply, RespClient, RespOptions};
use larder_protocol::resp::{Decoder, Limits, Step};

/// Serves every connection with `serve(connection number, stream)` on a thread of its own.
fn serve(serve: impl Fn(usize, TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let serve = Arc::clone(&serve);
            std::thread::spawn(move || serve(number, stream.unwrap()));
        }
    });
    address
}

/// Reads one command from the stream.
fn read_command(stream: &mut TcpStream) -> Option<Vec<String>> {
    let (mut decoder, mut bytes) = (Decoder::new(Limits::default()), Vec::new());
    loop {
        match decoder.decode(&bytes).unwrap() {
            Step::Request(_) => break,
            Step::Skip(_) => panic!("a request of nothing"),
            Step::Incomplete(_) => {
                // Reads no byte of the next command.
                let mut byte = [0];
                stream.read_exact(&mut byte).ok()?;
                bytes.extend(byte);
            }
        }
    }
    let arguments = decoder.request(&bytes);
    let text = |argument: &[u8]| String::from_utf8_lossy(argument).into_owned();
    Some(arguments.args().map(text).collect())
}

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string()
}

#[test]
fn a_read_is_sent_again_when_the_server_closed_an_idle_connection() {
    let served = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&served);
    let address = serve(move |_, mut stream| {
        // One reply per connection, which is then closed unexpectedly.
        let parts = read_command(&mut stream).unwrap();
        assert_eq!(parts[0], "GET");
        count.fetch_add(1, Ordering::SeqCst);
        stream.write_all(b"$2\r\nhi\r\n").unwrap();
    });
    let client = RespClient::new(address);
    for _ in 0..3 {
        assert_eq!(client.get("s:k").unwrap().as_deref(), Some(&b"hi"[..]));
    }
    assert_eq!(served.load(Ordering::SeqCst), 3);
}

#[test]
fn a_write_without_a_reply_is_not_sent_again() {
    let received = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&received);
    let address = serve(move |_, mut stream| {
        if read_command(&mut stream).is_some() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let client = RespClient::new(address);
    let error = client.command(&[b"SET", b"k", b"v"]).unwrap_err();
    assert!(matches!(error, Error::Broken { .. }), "{error}");
    assert_eq!(received.load(Ordering::SeqCst), 1);
}

#[test]
fn a_pipeline_keeps_replies_in_order_and_errors_in_place() {
    let address = serve(|_, mut stream| {
        while let Some(parts) = read_command(&mut stream) {
            let reply = match parts[0].as_str() {
                "GET" => "$-1\r\n",
                "PING" => "+PONG\r\n",
                _ => "-ERR unknown command\r\n",
            };
            stream.write_all(reply.as_bytes()).unwrap();
        }
    });
    let client = RespClient::new(address);
    let replies = client
        .pipeline(&[&[b"PING"], &[b"NOPE"], &[b"GET", b"s:k"]])
        .unwrap();
    assert_eq!(replies[0], Reply::Simple("PONG".into()));
    assert!(matches!(&replies[1], Reply::Error(error) if error.code == "ERR"));
    assert_eq!(replies[2], Reply::Null);
    let error = client.command(&[b"NOPE"]).unwrap_err();
    assert_eq!(error.code(), Some("ERR"));
}

#[test]
fn a_server_that_never_answers_is_a_timeout_and_not_an_absent_key() {
    let address = serve(|_, mut stream| {
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let options = RespOptions {
        timeout: Duration::from_millis(50),
        ..RespOptions::default()
    };
    let error = RespClient::with_options(address, options)
        .get("s:k")
        .unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
}

#[test]
fn malformed_replies_report_position_and_fault() {
    let address = serve(|_, mut stream| {
        read_command(&mut stream);
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n").unwrap();
    });
    let error = RespClient::new(address).get("s:k").unwrap_err();
    let Error::Protocol { detail, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(detail, "byte 0 of the replies: no reply begins with 'H'");
}

#[test]
fn a_refused_connection_says_how_to_start_a_server() {
    let address = free_address();
    let admin = AdminClient::new(&address).unwrap();
    let expected =
        format!("no larder server answers at http://{address}; start one with `larder serve`");
    assert_eq!(admin.stores().unwrap_err().to_string(), expected);
    let error = RespClient::new(address.clone()).get("s:k").unwrap_err();
    assert!(matches!(error, Error::NoServer { .. }), "{error}");
}

#[test]
fn errors_of_the_http_api_become_code_and_message() {
    let address = serve(|number, mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap() > 2 {
            line.clear();
        }
        let body = match number {
            0 => {
                r#"{"error":{"code":"NO_SUCH_STORE","message":"no store is named \"x\"","retry":false}}"#
            }
            _ => "<html>a proxy's page</html>",
        };
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 404 Not Found\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        )
        .unwrap();
    });
    let admin = AdminClient::new(&address).unwrap();
    let name = "x".parse().unwrap();
    let error = admin.store(&name).unwrap_err();
    assert_eq!(error.code(), Some("NO_SUCH_STORE"));
    assert_eq!(error.to_string(), "no store is named \"x\"");
    let error = admin.store(&name).unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
}
