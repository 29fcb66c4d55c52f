//! The deck: a page in the browser that shows a run while it runs, and has its buttons.
//!
//! ```text
//!   collector ──each second──► Board ◄──looks── routes ◄──HTTP── page.html, curl
//!   Watched (a Laboratory) ──begin, end of a trial──► Board ──asks──► Controls (run/live.rs)
//! ```
//!
//! `board` holds what is shown and what was asked for; `view` says what that is as JSON; `watched` and `live` connect it with trials and the process that runs them; `routes` is the
//! small API, with its guard against pages of other sites; `serve` bounds connections and their time; `page.html` is the page, which uses that API alone.
//!
//! Invariants:
//!
//! 1. Workers never wait for the deck: figures are made once a second where workers' counts are collected, whoever looks; HTTP has a
//!    thread of its own.
//! 2. What a page shows of a moment was one moment: it is made, and read, under one lock.
//! 3. A page that watches learns how the run ended before the deck closes, unless it takes longer than [`Limits::farewell`].

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;

mod board;
mod guard;
mod live;
mod routes;
mod serve;
mod view;
mod watched;

pub use board::{Board, Controls, Order, Second};
pub use serve::Limits;
pub use view::{About, Phase};
pub use watched::Watched;

/// The port where nobody says another: that of BG's own deck.
pub const PORT: u16 = 6001;

/// How long answers that are under way at the end may take.
const GRACE: Duration = Duration::from_secs(1);

/// A page and its API, served until dropped.
pub struct Deck {
    addr: SocketAddr,
    board: Arc<Board>,
    farewell: Duration,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Deck {
    /// Listens at once: from here on pages see what the board has.
    ///
    /// # Errors
    ///
    /// An address that is none, or is taken.
    pub fn open(addr: &str, board: Arc<Board>) -> Result<Deck, String> {
        Deck::open_within(Limits::default(), addr, board)
    }

    /// With limits of its own.
    ///
    /// # Errors
    ///
    /// As [`Deck::open`].
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
            farewell: limits.farewell,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it listens; the port is never 0.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What to tell the user: where to look, and who else may.
    pub fn invitation(&self) -> String {
        let mut text = format!("deck at http://{}/", self.addr);
        if !self.addr.ip().is_loopback() {
            text += " (not loopback: whoever reaches it may watch, change threads and stop)";
        }
        text
    }
}

impl Drop for Deck {
    fn drop(&mut self) {
        self.board.ended(None);
        self.board.wait_for_watchers(self.farewell);
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was printed; the run goes on without the page.
            let _ = thread.join();
        }
    }
}

/// `6001`, `127.0.0.1:6001`, `[::1]:6001`, `localhost:6001`; a port alone is of loopback.
fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.trim_start_matches(':').parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    let found = text
        .to_socket_addrs()
        .map_err(|why| format!("--deck {text}: must be PORT or HOST:PORT ({why})"))?;
    // A name may mean both families; the older is the one that people type.
    let all: Vec<SocketAddr> = found.collect();
    all.iter()
        .find(|addr| addr.is_ipv4())
        .or(all.first())
        .copied()
        .ok_or_else(|| format!("--deck {text}: no such host"))
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn a_port_alone_is_of_loopback_and_nonsense_is_refused_by_name() {
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
