//! Answers RESP clients while the server opens its stores and loads its rows.
//!
//! ```text
//!  listeners bound ─► Responder: answers most commands with -LOADING ─► rows are loaded ─► the serving threads accept, and take
//!                                                                                          over the responder's connections
//! ```
//!
//! The serving threads read the journal, so a separate thread answers RESP clients with Redis's error, which clients
//! retry. As in Redis, AUTH, HELLO, INFO and QUIT are executed, so that clients can connect and read the progress.
//!
//! 1. No other command is executed. Clients that have not authenticated receive NOAUTH.
//! 2. A connection is handed over to a serving thread only between two requests, with its authentication and protocol
//!    version; others are closed.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use larder_protocol::errors::Code;
use larder_protocol::resp::{Decoder, Encoder, Limits, Request, Step};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use super::describe::info_while_loading;
use super::dispatch::authentication_required;
use super::greeting::{self, Greeting};
use super::listen::TOO_MANY_CLIENTS;
use crate::Shared;
use crate::clients::{Client, Clients};
use crate::descriptors::Purpose;
use crate::error::{Error, Refusal};

/// Redis's text.
const LOADING_MESSAGE: &str = "Redis is loading the dataset in memory";
/// Maximum size of an incomplete request; a larger one closes its connection.
const REQUEST_BYTES_MAX: usize = 1 << 20;
const READ_BYTES: usize = 16 << 10;
/// Maximum time for the closing handshake of a TLS connection.
const SHUTDOWN_MAX: Duration = Duration::from_secs(1);
const PLAINTEXT_ERROR: &[u8] = b"-ERR this port requires TLS (server.tls_cert is set)\r\n";

/// A connection that waits for the server to be ready.
pub(super) struct LoadingConnection {
    pub stream: TcpStream,
    pub client: Arc<Client>,
    pub greeting: Greeting,
}

/// Answers RESP clients before the server is ready.
pub(super) struct Responder {
    stop: watch::Sender<bool>,
    waiting: Arc<Mutex<Vec<LoadingConnection>>>,
    thread: JoinHandle<()>,
}

impl Responder {
    /// Accepts connections on `listeners`, which serving threads use later.
    ///
    /// # Errors
    /// The system cannot create a thread or a descriptor.
    pub fn spawn<'a>(
        shared: &Arc<Shared>,
        clients: &Arc<Clients>,
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
            clients: clients.clone(),
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

    /// Stops accepting connections, and returns the open ones that wait for the server.
    pub fn finish(self) -> Vec<LoadingConnection> {
        self.stop.send_replace(true);
        // The supervisor reports a panic.
        let _ = self.thread.join();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *waiting)
    }
}

struct Connections {
    shared: Arc<Shared>,
    clients: Arc<Clients>,
    stopped: watch::Receiver<bool>,
    waiting: Arc<Mutex<Vec<LoadingConnection>>>,
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
        // An error means that the handle was dropped, so the thread also stops.
        let _ = stopped.wait_for(|stopped| *stopped).await;
        // Each task closes its connections.
        while accepting.join_next().await.is_some() {}
        Ok(())
    }

    async fn accept(self: Rc<Self>, listener: tokio::net::TcpListener) {
        let mut stopped = self.stopped.clone();
        let mut open = tokio::task::JoinSet::new();
        loop {
            tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => break,
                Some(_) = open.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, addr)) if self.shared.descriptors.allow(Purpose::Resp, &stream) => {
                        open.spawn_local(self.clone().serve_connection(stream, addr));
                    }
                    // The remaining descriptors are reserved for files.
                    Ok((stream, _)) => reject_excess(&stream),
                    // No descriptors or memory are left: retry after a delay.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                },
            }
        }
        while open.join_next().await.is_some() {}
    }

    async fn serve_connection(self: Rc<Self>, stream: tokio::net::TcpStream, addr: SocketAddr) {
        let stopped = self.stopped.clone();
        let (fd, local_addr) = (stream.as_raw_fd(), stream.local_addr().unwrap_or(addr));
        // Errors mean that the client is gone, so they are ignored.
        if let Some(tls) = &self.shared.client_tls {
            let mut at_end = stopped.clone();
            tokio::select! {
                accepted = tls.accept(stream, addr.ip(), PLAINTEXT_ERROR, |stream| stream) => {
                    if let Some(mut stream) = accepted
                        && let Some(entry) = self.register(fd, addr, local_addr)
                    {
                        let _ = self.dialog(&entry.0).serve(&mut stream, stopped).await;
                        drop(entry);
                        // A client that reads nothing must not delay the startup.
                        let _ = tokio::time::timeout(SHUTDOWN_MAX, stream.shutdown()).await;
                    }
                }
                _ = at_end.wait_for(|stopped| *stopped) => {}
            }
            return;
        }
        let mut stream = stream;
        let Some(entry) = self.register(fd, addr, local_addr) else {
            return reject_excess(&stream);
        };
        let mut dialog = self.dialog(&entry.0);
        if let Ok(true) = dialog.serve(&mut stream, stopped).await {
            let greeting = dialog.greeting;
            if let Ok(stream) = stream.into_std() {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                waiting.push(LoadingConnection {
                    stream,
                    client: entry.hand_over(),
                    greeting,
                });
            }
        }
    }

    /// Registers a connection, unless the limit is reached.
    fn register(
        &self,
        fd: RawFd,
        addr: SocketAddr,
        local_addr: SocketAddr,
    ) -> Option<ConnectionEntry> {
        let max = self.shared.descriptors.resp_connections() as usize;
        let client = self.clients.open(max, 0, fd, addr, local_addr)?;
        Some(ConnectionEntry(client, Some(self.clients.clone())))
    }

    fn dialog<'a>(&'a self, client: &'a Client) -> Dialog<'a> {
        Dialog {
            shared: &self.shared,
            client,
            greeting: Greeting::new(&self.shared),
        }
    }
}

/// Sends a connection beyond the limit its reply. The socket's buffer is empty, so this does not wait; an error means that the client has gone.
fn reject_excess(stream: &tokio::net::TcpStream) {
    let _ = stream.try_write(TOO_MANY_CLIENTS);
}

/// A connection's registration. It is removed before the socket closes, unless the connection is handed over.
struct ConnectionEntry(Arc<Client>, Option<Arc<Clients>>);

impl ConnectionEntry {
    fn hand_over(mut self) -> Arc<Client> {
        self.1 = None;
        self.0.clone()
    }
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        if let Some(clients) = &self.1 {
            clients.close(&self.0);
        }
    }
}

/// The dialog on one connection.
struct Dialog<'a> {
    shared: &'a Shared,
    client: &'a Client,
    greeting: Greeting,
}

impl Dialog<'_> {
    /// Answers the requests of a connection. Returns true when loading has ended between two requests, so that the
    /// connection can be handed over.
    async fn serve(
        &mut self,
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
            let mut consumed = 0;
            let mut is_closing = false;
            while !is_closing {
                let rest = &input[consumed..];
                match decoder.decode(rest) {
                    Ok(Step::Request(size)) => {
                        let request = decoder.request(rest);
                        if greeting::is_throttled(self.shared, self.client, request) {
                            let turn = self
                                .shared
                                .guess_limiter
                                .wait_for_turn(self.client.addr.ip());
                            tokio::select! {
                                () = turn => {}
                                _ = stopped.wait_for(|stopped| *stopped) => return Ok(false),
                            }
                        }
                        is_closing = self.execute(request, &mut output);
                        consumed += size;
                    }
                    Ok(Step::Skip(size)) => consumed += size,
                    Ok(Step::Incomplete(_)) => break,
                    Err(error) => {
                        self.encoder(&mut output)
                            .error(Code::BadRequest, &error.to_string());
                        is_closing = true;
                    }
                }
            }
            input.drain(..consumed);
            let write = async {
                stream.write_all(&output).await?;
                stream.flush().await
            };
            tokio::select! {
                biased;
                written = write => written?,
                // A client that reads nothing must not delay the startup.
                _ = stopped.wait_for(|stopped| *stopped) => return Ok(false),
            }
            output.clear();
            if is_closing {
                return Ok(false);
            }
            // A client that sends without a pause would keep the wait above from detecting the end.
            if *stopped.borrow() {
                return Ok(input.is_empty());
            }
        }
    }

    /// Executes a request. Returns true if the connection must be closed.
    fn execute(&mut self, request: Request<'_>, output: &mut Vec<u8>) -> bool {
        let name = request.arg(0).to_ascii_uppercase();
        let answered = match name.as_slice() {
            b"QUIT" => {
                self.encoder(output).ok();
                return true;
            }
            b"AUTH" => greeting::auth(self.shared, self.client, request).map(|()| {
                self.greeting.authenticated = true;
                self.encoder(output).ok();
            }),
            b"HELLO" => self.hello(request, output),
            _ if !self.greeting.authenticated => Err(authentication_required()),
            b"INFO" => {
                let text = info_while_loading(self.shared, self.client, request);
                self.encoder(output).verbatim(&text);
                Ok(())
            }
            _ => Err((Code::Loading, LOADING_MESSAGE.to_owned())),
        };
        if let Err((code, message)) = answered {
            self.encoder(output).error(code, &message);
        }
        false
    }

    fn hello(&mut self, request: Request<'_>, output: &mut Vec<u8>) -> Result<(), Refusal> {
        greeting::hello(self.shared, self.client, &mut self.greeting, request)?;
        let (id, mode) = (self.client.id, self.shared.mode());
        greeting::answer_hello(&mut self.encoder(output), id, mode);
        Ok(())
    }

    fn encoder<'o>(&self, out: &'o mut Vec<u8>) -> Encoder<'o> {
        Encoder {
            out,
            proto: self.greeting.proto,
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_protocol::config::ServerConfig;
    use larder_protocol::resp::Proto;

    use super::*;
    use crate::clients;

    /// The state that a server shares before it is ready, with or without a password.
    struct Loading {
        shared: Shared,
        client: Arc<Client>,
        _folder: tempfile::TempDir,
    }

    impl Loading {
        fn new(password: &str) -> Loading {
            let folder = tempfile::tempdir().expect("a folder");
            let mut config = ServerConfig::default();
            config.server.data = folder.path().to_owned();
            config.server.password = password.to_owned();
            let clients = Clients::new(clients::Limits::from_config(&config), Arc::default());
            let addr = SocketAddr::from(([127, 0, 0, 1], 1));
            let client = clients.open(1, 0, -1, addr, addr).expect("there is room");
            Loading {
                shared: Shared::new(config).expect("prepared"),
                client,
                _folder: folder,
            }
        }

        fn dialog(&self) -> Dialog<'_> {
            Dialog {
                shared: &self.shared,
                client: &self.client,
                greeting: Greeting::new(&self.shared),
            }
        }

        /// Returns the replies that a client reads, and whether its connection would be handed over.
        async fn exchange(&self, request: &[u8]) -> (String, bool) {
            let (mut client, mut server) = tokio::io::duplex(1 << 16);
            let (stop, stopped) = watch::channel(false);
            client.write_all(request).await.expect("sent");
            let mut dialog = self.dialog();
            let answering = dialog.serve(&mut server, stopped);
            let stopping = async {
                // The request is read before the end of loading is detected.
                tokio::task::yield_now().await;
                stop.send_replace(true);
            };
            let (is_handed_over, ()) = tokio::join!(answering, stopping);
            drop(server);
            let mut replies = String::new();
            client.read_to_string(&mut replies).await.expect("text");
            (replies, is_handed_over.expect("the client is there"))
        }
    }

    #[tokio::test]
    async fn requests_receive_loading_and_a_connection_is_handed_over_between_requests() {
        let server = Loading::new("");
        let loading = "-LOADING Redis is loading the dataset in memory\r\n";
        let pipelined = b"PING\r\n*2\r\n$3\r\nGET\r\n$1\r\na\r\n";
        assert_eq!(server.exchange(pipelined).await, (loading.repeat(2), true));
        assert_eq!(server.exchange(b"").await, (String::new(), true));
        let cut = server.exchange(b"PING\r\n*2\r\n$3\r\nGE").await;
        assert_eq!(cut, (loading.to_owned(), false));
        assert_eq!(
            server.exchange(b"QUIT\r\nPING\r\n").await,
            ("+OK\r\n".to_owned(), false)
        );
        let (wrong, is_handed_over) = server.exchange(b"*x\r\n").await;
        assert!(wrong.starts_with("-ERR Protocol error"), "{wrong}");
        assert!(!is_handed_over);
    }

    /// The end of loading waits for no client, whether it reads no replies or sends without a pause.
    #[tokio::test]
    async fn slow_or_flooding_clients_do_not_delay_the_start() {
        let loading = Loading::new("");
        let mut dialog = loading.dialog();
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
            _ = dialog.serve(&mut server, stopped) => {}
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
            _ = dialog.serve(&mut server, stopped) => {}
            () = async { tokio::join!(sending, reading); } => panic!("the answers go on"),
        }
    }

    #[tokio::test]
    async fn clients_can_authenticate_choose_a_protocol_and_read_the_progress() {
        let server = Loading::new("");
        let (info, _) = server.exchange(b"INFO persistence\r\n").await;
        assert!(info.contains("# Persistence\r\nloading:1\r\n"), "{info}");
        assert!(!info.contains("# Server"), "{info}");
        let (hello, is_handed_over) = server.exchange(b"HELLO 3 SETNAME me\r\n").await;
        assert!(hello.starts_with("%7\r\n") && is_handed_over, "{hello}");
        assert_eq!(server.client.names().name, "me");

        let server = Loading::new("secret");
        let no_password = "-NOAUTH Authentication required.\r\n";
        let (replies, _) = server.exchange(b"GET a\r\nINFO\r\n").await;
        assert_eq!(replies, no_password.repeat(2));
        let mut dialog = server.dialog();
        let mut output = Vec::new();
        for request in [&b"AUTH wrong\r\n"[..], b"AUTH secret\r\n", b"PING\r\n"] {
            let mut decoder = Decoder::new(Limits::default());
            decoder.decode(request).expect("a request");
            dialog.execute(decoder.request(request), &mut output);
        }
        let replies = String::from_utf8(output).expect("text");
        assert_eq!(
            replies,
            "-WRONGPASS invalid username-password pair or user is disabled.\r\n+OK\r\n-LOADING Redis is loading the dataset in memory\r\n"
        );
        let greeting = Greeting {
            authenticated: true,
            proto: Proto::Resp2,
        };
        assert_eq!(dialog.greeting, greeting);
    }
}
