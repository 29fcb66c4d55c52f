//! The deck: a web page that shows and controls a run.
//!
//! ```text
//!   collector ──each second──► Board ◄──reads── routes ◄──HTTP── page.html, curl
//!   ObservedRunner (a TrialRunner) ──start, end of a trial──► Board ──requests──► Controls (run/live.rs)
//! ```
//!
//! `board` contains the state and the requests, and `view` its JSON form. `observed` and `live` connect it with trials
//! and the process that runs them. `routes` is the API, and `guard` protects it against pages of other sites. `serve`
//! limits connections and their duration. `page.html` is the page, which uses only that API.
//!
//! Invariants:
//!
//! 1. Workers never wait for the deck: once a second, the thread that collects the workers' counts also updates the
//!    board, whether or not a page is open. HTTP has a thread of its own.
//! 2. The state shown on a page is consistent: it is written and read under one lock.
//! 3. A page that is open receives the result of the run before the deck closes, unless it takes longer than
//!    [`Limits::linger`].

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;

mod board;
mod guard;
mod live;
mod observed;
mod routes;
mod serve;
mod view;

pub use board::{Board, Controls, NextStep, Second};
pub use observed::ObservedRunner;
pub use serve::Limits;
pub use view::{About, Phase};

/// The default port: that of the original BG's deck.
pub const PORT: u16 = 6001;

/// The maximum time for answers that are in progress at the end.
const GRACE: Duration = Duration::from_secs(1);

/// A page and its API, served until dropped.
pub struct Deck {
    addr: SocketAddr,
    board: Arc<Board>,
    linger: Duration,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Deck {
    /// Starts listening immediately: from here on, pages see the state of the board.
    ///
    /// # Errors
    ///
    /// The address is invalid or in use.
    pub fn open(addr: &str, board: Arc<Board>) -> Result<Deck, String> {
        Deck::open_within(Limits::default(), addr, board)
    }

    /// Opens a deck with the given limits.
    ///
    /// # Errors
    ///
    /// As for [`Deck::open`].
    pub fn open_within(limits: Limits, addr: &str, board: Arc<Board>) -> Result<Deck, String> {
        let addr = address(addr)?;
        let failed = |why: std::io::Error| format!("--deck {addr}: {why}");
        let listener = TcpListener::bind(addr).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let router = routes::router(board.clone(), addr);
        let thread = std::thread::Builder::new()
            .name("deck".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
                        return;
                    };
                    serve::serve(listener, router, limits, stopped, GRACE).await;
                });
            })
            .map_err(failed)?;
        Ok(Deck {
            addr,
            board,
            linger: limits.linger,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Returns the address that it listens on. The port is never 0.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns a message for the user: the address of the deck, and who else has access.
    pub fn address_message(&self) -> String {
        let mut text = format!("deck at http://{}/", self.addr);
        if !self.addr.ip().is_loopback() {
            text += " (not loopback: any host that can reach it can watch and control the run)";
        }
        text
    }
}

impl Drop for Deck {
    fn drop(&mut self) {
        self.board.record_run_end(None);
        self.board.wait_for_watchers(self.linger);
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of that thread was already printed; the run continues without the page.
            let _ = thread.join();
        }
    }
}

/// Parses `6001`, `127.0.0.1:6001`, `[::1]:6001` or `localhost:6001`. A port alone is on the loopback interface.
fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.trim_start_matches(':').parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    let found = text
        .to_socket_addrs()
        .map_err(|why| format!("--deck {text}: must be PORT or HOST:PORT ({why})"))?;
    // A name may resolve to both address families. IPv4 is the one that users type.
    let all: Vec<SocketAddr> = found.collect();
    all.iter()
        .find(|addr| addr.is_ipv4())
        .or(all.first())
        .copied()
        .ok_or_else(|| format!("--deck {text}: unknown host"))
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn a_port_alone_means_loopback_and_invalid_addresses_are_rejected_by_name() {
        for text in ["6001", ":6001", "127.0.0.1:6001", "localhost:6001"] {
            let addr = address(text).unwrap();
            assert!(addr.ip().is_loopback() && addr.port() == 6001, "{text}");
        }
        assert!(!address("0.0.0.0:0").unwrap().ip().is_loopback());
        for text in ["", "here", "127.0.0.1", "1:2:3"] {
            let why = address(text).unwrap_err();
            assert!(why.starts_with(&format!("--deck {text}")), "{why}");
        }
    }
}
