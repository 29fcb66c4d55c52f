//! The write timeout of HTTP: a connection ends whose client takes nothing of an answer for `server.http_timeout_seconds`. The
//! timeouts of reading are elsewhere: for a request's head in hyper, for its body in `body.rs`.
//!
//! A client that reads slowly is not ended: a socket accepts more only after a good part of its buffer is free, so while it accepts
//! nothing, the number of bytes that the system still holds shows whether the client takes any.

use std::future::Future;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use crate::unsent::unsent_bytes;

/// How often a socket that takes nothing is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A socket with the timeout.
pub struct WriteTimeout {
    stream: TcpStream,
    timeout: Duration,
    /// Since the socket took nothing.
    stuck: Option<Stuck>,
}

struct Stuck {
    look: Pin<Box<Sleep>>,
    /// What the system held when last looked.
    unsent_bytes: usize,
    /// When the client was last seen to take some.
    taken_at: Instant,
}

impl WriteTimeout {
    pub fn new(stream: TcpStream, timeout: Duration) -> WriteTimeout {
        WriteTimeout {
            stream,
            timeout,
            stuck: None,
        }
    }

    /// Passes on what came of a write, unless the client took nothing for too long.
    fn judge<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stuck = None;
            return written;
        }
        let (fd, timeout) = (self.stream.as_raw_fd(), self.timeout);
        let look_every = LOOK_EVERY.min(timeout);
        let stuck = self.stuck.get_or_insert_with(|| Stuck {
            look: Box::pin(sleep(look_every)),
            unsent_bytes: unsent_bytes(fd),
            taken_at: Instant::now(),
        });
        while stuck.look.as_mut().poll(cx).is_ready() {
            let (now, unsent) = (Instant::now(), unsent_bytes(fd));
            if unsent != stuck.unsent_bytes {
                (stuck.unsent_bytes, stuck.taken_at) = (unsent, now);
            } else if now.duration_since(stuck.taken_at) >= timeout {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            stuck.look.as_mut().reset(now + look_every);
        }
        Poll::Pending
    }
}

impl AsyncRead for WriteTimeout {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for WriteTimeout {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.judge(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
