//! The time while rows load: how far that is, and the answers that clients get meanwhile.
//!
//! ```text
//!  listeners bound ─► Responder: every command is answered -LOADING ─► rows are in memory ─► the serving threads accept, and take over
//!                                                                                            the responder's connections
//! ```
//!
//! The serving threads read the journal, so a thread of its own answers RESP clients: with Redis's error, which clients retry. HTTP
//! answers `/healthz` with 200 and `/readyz` with 503 and the progress.
//!
//! 1. No command is executed and no password checked: every request has the same answer, except QUIT.
//! 2. A connection is handed to a serving thread only between two requests; others are closed.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use larder_journal::Entry;
use larder_protocol::errors::Code;
use larder_protocol::resp::{Decoder, Encoder, Limits, Proto, Step};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use crate::Shared;
use crate::descriptors::Purpose;
use crate::error::Error;

/// Redis's text.
pub const MESSAGE: &str = "Redis is loading the dataset in memory";
/// A request without its end may have so many bytes; a longer one closes its connection.
const REQUEST_BYTES_MAX: usize = 1 << 20;
const READ_BYTES: usize = 16 << 10;
/// How long a client may take to receive the end of a TLS connection.
const SHUTDOWN_MAX: Duration = Duration::from_secs(1);
const PLAIN: &[u8] = b"-ERR this port speaks TLS only (server.tls_cert is set)\r\n";

/// How far loading is.
#[derive(Default)]
pub struct Progress {
    is_loading: AtomicBool,
    entries: AtomicU64,
    bytes: AtomicU64,
    bytes_total: AtomicU64,
}

impl Progress {
    /// `bytes_total` is the size of what will be read.
    pub fn begin(&self, bytes_total: u64) {
        self.bytes_total.store(bytes_total, Relaxed);
        self.is_loading.store(true, Relaxed);
    }

    pub fn end(&self) {
        self.is_loading.store(false, Relaxed);
    }

    #[inline]
    pub fn is_loading(&self) -> bool {
        self.is_loading.load(Relaxed)
    }

    /// Counts an entry of the journal. One thread reads the journal, and no other counts.
    #[inline]
    pub fn count(&self, entry: &Entry<'_>) {
        let bytes = self.bytes.load(Relaxed) + entry.payload_bytes() as u64;
        self.bytes.store(bytes, Relaxed);
        self.entries.store(self.entries.load(Relaxed) + 1, Relaxed);
    }

    /// The progress in words, while rows load.
    pub fn in_words(&self) -> Option<String> {
        if !self.is_loading() {
            return None;
        }
        let (entries, bytes) = (self.entries.load(Relaxed), self.bytes.load(Relaxed));
        let percent = (bytes * 100)
            .checked_div(self.bytes_total.load(Relaxed))
            .unwrap_or(0)
            .min(100);
        Some(format!(
            "rows are being loaded into memory: {entries} entries of the journal, {percent} % of its bytes"
        ))
    }

    /// # Errors
    /// [`Code::Loading`] while rows load.
    pub fn ensure_loaded(&self) -> Result<(), Error> {
        match self.in_words() {
            None => Ok(()),
            Some(progress) => Err(Error::Tables(Code::Loading, progress)),
        }
    }
}

/// A connection that waits for the server to serve.
pub type Waiting = (TcpStream, SocketAddr);

/// Answers RESP clients while rows load.
pub struct Responder {
    stop: watch::Sender<bool>,
    waiting: Arc<Mutex<Vec<Waiting>>>,
    thread: JoinHandle<()>,
}

impl Responder {
    /// Accepts on `listeners`, which serving threads use later.
    ///
    /// # Errors
    /// The system gives no thread, or no descriptor.
    pub fn spawn<'a>(
        shared: &Arc<Shared>,
        listeners: impl Iterator<Item = &'a TcpListener>,
    ) -> io::Result<Responder> {
        let listeners: Vec<TcpListener> = listeners
            .map(TcpListener::try_clone)
            .collect::<io::Result<_>>()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (stop, stopped) = watch::channel(false);
        let waiting = Arc::new(Mutex::default());
        let connections = Connections {
            shared: shared.clone(),
            stopped,
            waiting: waiting.clone(),
        };
        let run = move || {
            tokio::task::LocalSet::new()
                .block_on(&runtime, connections.serve(listeners))
                .map_err(|error| Error::Io(format!("cannot use server.resp: {error}")))
        };
        let thread = shared.supervisor.spawn("larder-loading", run)?;
        Ok(Responder {
            stop,
            waiting,
            thread,
        })
    }

    /// Stops accepting; returns the open connections that wait for the server.
    pub fn end(self) -> Vec<Waiting> {
        self.stop.send_replace(true);
        // The supervisor reports a panic.
        let _ = self.thread.join();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *waiting)
    }
}

struct Connections {
    shared: Arc<Shared>,
    stopped: watch::Receiver<bool>,
    waiting: Arc<Mutex<Vec<Waiting>>>,
}

impl Connections {
    async fn serve(self, listeners: Vec<TcpListener>) -> io::Result<()> {
        let mut stopped = self.stopped.clone();
        let connections = Rc::new(self);
        let mut accepting = tokio::task::JoinSet::new();
        for listener in listeners {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            accepting.spawn_local(connections.clone().accept(listener));
        }
        // An error means that the handle is gone: stop as well.
        let _ = stopped.wait_for(|stopped| *stopped).await;
        // Each ends its connections.
        while accepting.join_next().await.is_some() {}
        Ok(())
    }

    async fn accept(self: Rc<Self>, listener: tokio::net::TcpListener) {
        let max = self.shared.descriptors.resp_connections() as usize;
        let mut stopped = self.stopped.clone();
        let mut open = tokio::task::JoinSet::new();
        loop {
            tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => break,
                Some(_) = open.join_next() => {}
                accepted = listener.accept(), if open.len() < max => match accepted {
                    Ok((stream, addr)) if self.shared.descriptors.allow(Purpose::Resp, &stream) => {
                        open.spawn_local(self.clone().connection(stream, addr));
                    }
                    // The descriptors that are left are for files.
                    Ok(_) => {}
                    // Out of descriptors or memory: others may give some back.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                },
            }
        }
        while open.join_next().await.is_some() {}
    }

    async fn connection(self: Rc<Self>, stream: tokio::net::TcpStream, addr: SocketAddr) {
        let stopped = self.stopped.clone();
        // Errors mean that the client has gone, and there is nobody to tell.
        if let Some(tls) = &self.shared.client_tls {
            let mut at_end = stopped.clone();
            tokio::select! {
                accepted = tls.accept(stream, addr.ip(), PLAIN, |stream| stream) => {
                    if let Some(mut stream) = accepted {
                        let _ = answer(&mut stream, stopped).await;
                        // A client that reads nothing holds nobody up.
                        let _ = tokio::time::timeout(SHUTDOWN_MAX, stream.shutdown()).await;
                    }
                }
                _ = at_end.wait_for(|stopped| *stopped) => {}
            }
            return;
        }
        let mut stream = stream;
        if let Ok(true) = answer(&mut stream, stopped).await
            && let Ok(stream) = stream.into_std()
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.push((stream, addr));
        }
    }
}

/// Answers the requests of a connection; true once the server serves, if that is between two requests.
async fn answer(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    mut stopped: watch::Receiver<bool>,
) -> io::Result<bool> {
    let mut decoder = Decoder::new(Limits {
        argument_bytes_max: REQUEST_BYTES_MAX,
        request_bytes_max: REQUEST_BYTES_MAX,
        ..Limits::default()
    });
    let (mut input, mut output) = (Vec::with_capacity(READ_BYTES), Vec::new());
    loop {
        tokio::select! {
            biased;
            read = stream.read_buf(&mut input) => {
                if read? == 0 {
                    return Ok(false);
                }
            }
            _ = stopped.wait_for(|stopped| *stopped) => return Ok(input.is_empty()),
        }
        let mut taken = 0;
        let mut quits = false;
        while !quits {
            let rest = &input[taken..];
            match decoder.decode(rest) {
                Ok(Step::Request(size)) => {
                    quits = decoder.request(rest).arg(0).eq_ignore_ascii_case(b"QUIT");
                    let mut encoder = encoder(&mut output);
                    match quits {
                        true => encoder.ok(),
                        false => encoder.error(Code::Loading, MESSAGE),
                    }
                    taken += size;
                }
                Ok(Step::Skip(size)) => taken += size,
                Ok(Step::Incomplete(_)) => break,
                Err(error) => {
                    encoder(&mut output).error(Code::BadRequest, &error.to_string());
                    quits = true;
                }
            }
        }
        input.drain(..taken);
        let write = async {
            stream.write_all(&output).await?;
            stream.flush().await
        };
        tokio::select! {
            biased;
            written = write => written?,
            // A client that reads nothing holds up no start.
            _ = stopped.wait_for(|stopped| *stopped) => return Ok(false),
        }
        output.clear();
        if quits {
            return Ok(false);
        }
        // A client that sends without a pause would never let the wait above see it.
        if *stopped.borrow() {
            return Ok(input.is_empty());
        }
    }
}

fn encoder(out: &mut Vec<u8>) -> Encoder<'_> {
    Encoder {
        out,
        proto: Proto::Resp2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a client reads, and whether its connection would be handed on.
    async fn exchange(request: &[u8]) -> (String, bool) {
        let (mut client, mut server) = tokio::io::duplex(1 << 16);
        let (stop, stopped) = watch::channel(false);
        client.write_all(request).await.expect("sent");
        let answering = answer(&mut server, stopped);
        let stopping = async {
            // The request is read before the end of loading is noticed.
            tokio::task::yield_now().await;
            stop.send_replace(true);
        };
        let (is_handed_on, ()) = tokio::join!(answering, stopping);
        drop(server);
        let mut replies = String::new();
        client.read_to_string(&mut replies).await.expect("text");
        (replies, is_handed_on.expect("the client is there"))
    }

    #[tokio::test]
    async fn every_request_is_answered_loading_and_a_connection_is_handed_on_between_two() {
        let loading = "-LOADING Redis is loading the dataset in memory\r\n";
        let pipelined = b"PING\r\n*2\r\n$3\r\nGET\r\n$1\r\na\r\n";
        assert_eq!(exchange(pipelined).await, (loading.repeat(2), true));
        assert_eq!(exchange(b"").await, (String::new(), true));
        let cut = exchange(b"PING\r\n*2\r\n$3\r\nGE").await;
        assert_eq!(cut, (loading.to_owned(), false));
        assert_eq!(
            exchange(b"QUIT\r\nPING\r\n").await,
            ("+OK\r\n".to_owned(), false)
        );
        let (wrong, is_handed_on) = exchange(b"*x\r\n").await;
        assert!(wrong.starts_with("-ERR Protocol error"), "{wrong}");
        assert!(!is_handed_on);
    }

    /// The end of loading waits for no client: neither for one that reads no replies, nor for one that sends without a pause.
    #[tokio::test]
    async fn clients_that_read_nothing_or_send_on_hold_up_no_start() {
        let (mut client, mut server) = tokio::io::duplex(64);
        let (stop, stopped) = watch::channel(false);
        let flooding = async { while client.write_all(b"PING\r\n").await.is_ok() {} };
        let stopping = async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            stop.send_replace(true);
        };
        tokio::select! {
            _ = answer(&mut server, stopped) => {}
            () = async { tokio::join!(flooding, stopping); } => panic!("the answers go on"),
        }

        let (client, mut server) = tokio::io::duplex(1 << 10);
        let (mut reader, mut writer) = tokio::io::split(client);
        let (stop, stopped) = watch::channel(false);
        let sending = async { while writer.write_all(b"PING\r\n").await.is_ok() {} };
        let reading = async {
            let mut replies = [0; 100];
            for round in 0.. {
                if reader.read(&mut replies).await.is_ok_and(|read| read > 0) && round == 100 {
                    stop.send_replace(true);
                }
            }
        };
        tokio::select! {
            _ = answer(&mut server, stopped) => {}
            () = async { tokio::join!(sending, reading); } => panic!("the answers go on"),
        }
    }

    #[test]
    fn progress_is_told_only_while_rows_load() {
        let progress = Progress::default();
        assert!(progress.ensure_loaded().is_ok());
        progress.begin(40);
        progress.count(&Entry::Put {
            key: b"12345",
            value: b"12345",
            deadline_ms: None,
        });
        let told = progress.in_words().expect("it loads");
        assert!(
            told.ends_with("1 entries of the journal, 25 % of its bytes"),
            "{told}"
        );
        progress.end();
        assert_eq!(progress.in_words(), None);
    }
}
