//! Receives the messages of several clients at once, until each has sent its last one or one fails.

use std::io::{self, BufReader};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::Connection;
use super::protocol::{self, Tell};

/// How soon a wish to end, or for other threads, is passed on.
const IDLE: Duration = Duration::from_millis(50);

/// What there is to do something about.
pub enum Event {
    /// The client of this index said something; signs of life are not told.
    Said(usize, Tell),
    /// Nobody said anything for a moment.
    Idle,
}

/// Calls `each` until all clients said their last word. The first failure, theirs or what `each` returns, parts with all of them: that
/// ends what they do.
///
/// # Errors
///
/// The failure, with the client's address where it is one's own.
pub fn hear(
    clients: &[&Connection],
    silence_max: Duration,
    each: &mut dyn FnMut(Event) -> Result<(), String>,
) -> Result<(), String> {
    let (sender, receiver) = channel();
    thread::scope(|scope| {
        for (index, client) in clients.iter().enumerate() {
            let sender = sender.clone();
            scope.spawn(move || {
                listen(&client.stream, silence_max, &mut |said| {
                    let said = said.map_err(|why| format!("client {}: {why}", client.address));
                    // Nobody hears any more when another client has failed.
                    let _ = sender.send((index, said));
                });
            });
        }
        drop(sender);
        let mut failure: Option<String> = None;
        loop {
            let event = match receiver.recv_timeout(IDLE) {
                Ok((index, said)) => said.map(|tell| Event::Said(index, tell)),
                Err(RecvTimeoutError::Timeout) => Ok(Event::Idle),
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if failure.is_some() {
                continue;
            }
            if let Err(why) = event.and_then(&mut *each) {
                failure = Some(why);
                for client in clients {
                    // It may be gone already; the others end.
                    let _ = client.stream.shutdown(Shutdown::Both);
                }
            }
        }
        failure.map_or(Ok(()), Err)
    })
}

/// Until the last word, a failure, or silence.
fn listen(stream: &TcpStream, silence_max: Duration, tell: &mut dyn FnMut(Result<Tell, String>)) {
    if let Err(why) = stream.set_read_timeout(Some(silence_max)) {
        return tell(Err(why.to_string()));
    }
    let mut reader = BufReader::new(stream);
    loop {
        let said = match protocol::read::<Tell>(&mut reader) {
            Ok(Tell::Alive) => continue,
            Ok(Tell::Failed { why }) => Err(why),
            Ok(other) => Ok(other),
            Err(why) => Err(match why.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    format!("no sign of life for {} s", silence_max.as_secs_f64())
                }
                _ => why.to_string(),
            }),
        };
        let last = said.as_ref().map_or(true, Tell::is_last);
        tell(said);
        if last {
            return;
        }
    }
}
