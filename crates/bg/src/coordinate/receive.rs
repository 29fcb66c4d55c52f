//! Receives the messages of several clients concurrently, until each has sent its last one or one fails.

use std::io::{self, BufReader};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::ClientConnection;
use super::protocol::{self, ClientMessage};

/// Interval at which [`Event::Idle`] occurs, and thus the delay before a request to end or to change the threads is
/// forwarded.
const IDLE: Duration = Duration::from_millis(50);

/// An event that the coordinator must handle.
pub enum Event {
    /// The client with this index sent a message other than a keep-alive.
    Received(usize, ClientMessage),
    /// No message arrived for a moment.
    Idle,
}

/// Calls `each` for every event until all clients have sent their last message. The first failure, of a client or of
/// `each`, closes the connections to all clients, which ends their work.
///
/// # Errors
///
/// The first failure, with the client's address if a client caused it.
pub fn receive_all(
    clients: &[&ClientConnection],
    silence_max: Duration,
    each: &mut dyn FnMut(Event) -> Result<(), String>,
) -> Result<(), String> {
    let (sender, receiver) = channel();
    thread::scope(|scope| {
        for (index, client) in clients.iter().enumerate() {
            let sender = sender.clone();
            scope.spawn(move || {
                read_messages(&client.stream, silence_max, &mut |message| {
                    let message =
                        message.map_err(|why| format!("client {}: {why}", client.address));
                    // After another client's failure, the receiver is gone.
                    let _ = sender.send((index, message));
                });
            });
        }
        drop(sender);
        let mut failure: Option<String> = None;
        loop {
            let event = match receiver.recv_timeout(IDLE) {
                Ok((index, message)) => message.map(|message| Event::Received(index, message)),
                Err(RecvTimeoutError::Timeout) => Ok(Event::Idle),
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if failure.is_some() {
                continue;
            }
            if let Err(why) = event.and_then(&mut *each) {
                failure = Some(why);
                for client in clients {
                    // It may be closed already; the others end.
                    let _ = client.stream.shutdown(Shutdown::Both);
                }
            }
        }
        failure.map_or(Ok(()), Err)
    })
}

/// Receives messages until the last one, a failure, or silence.
fn read_messages(
    stream: &TcpStream,
    silence_max: Duration,
    deliver: &mut dyn FnMut(Result<ClientMessage, String>),
) {
    if let Err(why) = stream.set_read_timeout(Some(silence_max)) {
        return deliver(Err(why.to_string()));
    }
    let mut reader = BufReader::new(stream);
    loop {
        let message = match protocol::read::<ClientMessage>(&mut reader) {
            Ok(ClientMessage::Alive) => continue,
            Ok(ClientMessage::Failed { why }) => Err(why),
            Ok(other) => Ok(other),
            Err(why) => Err(match why.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    format!(
                        "the client sent no heartbeat for {} s",
                        silence_max.as_secs_f64()
                    )
                }
                _ => why.to_string(),
            }),
        };
        let last = message.as_ref().map_or(true, ClientMessage::is_last);
        deliver(message);
        if last {
            return;
        }
    }
}
