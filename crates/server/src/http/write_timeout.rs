//! The write timeout of HTTP: closes a connection whose client reads nothing of a response for `server.http_timeout_seconds`. The
//! read timeouts are elsewhere: for a request's head in hyper, for its body in `body.rs`.
//!
//! A slow reader is not disconnected. A socket accepts more data only after a good part of its buffer is free. While
//! it accepts none, the number of bytes that the system still holds shows whether the client is reading.

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

/// The interval of checks while the socket accepts nothing.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A socket with a write timeout.
pub struct WriteTimeout {
    stream: TcpStream,
    timeout: Duration,
    /// Present while the socket accepts nothing.
    blocked: Option<BlockedWrite>,
}

struct BlockedWrite {
    timer: Pin<Box<Sleep>>,
    /// The bytes that the system held at the last check.
    unsent_bytes: usize,
    /// The time at which the client was last seen to read.
    progressed_at: Instant,
}

impl WriteTimeout {
    pub fn new(stream: TcpStream, timeout: Duration) -> WriteTimeout {
        WriteTimeout {
            stream,
            timeout,
            blocked: None,
        }
    }

    /// Returns the result of a write, or an error if the client has read nothing for too long.
    fn check_progress<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.blocked = None;
            return written;
        }
        let (fd, timeout) = (self.stream.as_raw_fd(), self.timeout);
        let check_interval = CHECK_INTERVAL.min(timeout);
        let blocked = self.blocked.get_or_insert_with(|| BlockedWrite {
            timer: Box::pin(sleep(check_interval)),
            unsent_bytes: unsent_bytes(fd),
            progressed_at: Instant::now(),
        });
        while blocked.timer.as_mut().poll(cx).is_ready() {
            let (now, unsent) = (Instant::now(), unsent_bytes(fd));
            if unsent != blocked.unsent_bytes {
                (blocked.unsent_bytes, blocked.progressed_at) = (unsent, now);
            } else if now.duration_since(blocked.progressed_at) >= timeout {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            blocked.timer.as_mut().reset(now + check_interval);
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
        self.check_progress(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.check_progress(written, cx)
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
