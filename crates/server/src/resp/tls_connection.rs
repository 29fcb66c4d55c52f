//! A connection with TLS, as the stream of a session.
//!
//! TLS buffers written data even when the socket is full. A session does not flush that buffer on its own, so its
//! contents are sent before the session waits for the client's next request.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::core::Core;
use super::listen::open;
use super::session::{self, Stream};
use crate::client_tls::ClientTls;

const PLAINTEXT_ERROR: &[u8] = b"-ERR this port requires TLS (server.tls_cert is set): connect with redis-cli --tls --cacert FILE or a rediss:// address\r\n";

/// Performs the TLS handshake, and serves the connection until it ends.
pub(super) async fn run(core: Rc<Core>, tls: &ClientTls, socket: TcpStream, addr: SocketAddr) {
    let accepted = tls
        .accept(socket, addr.ip(), PLAINTEXT_ERROR, |socket| socket)
        .await;
    let Some(stream) = accepted else {
        core.stats.connections_closed.add(1);
        return;
    };
    // `open` returns `None` for a connection above the limit; the client notices that it is closed.
    if let Some(client) = open(&core, stream.get_ref().0, addr) {
        session::run(core, TlsConnection(stream), client).await;
    }
}

struct TlsConnection(TlsStream<TcpStream>);

impl Stream for TlsConnection {
    const NEEDS_SHUTDOWN: bool = true;

    fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.get_ref().0.poll_closed(cx)
    }
}

impl AsyncRead for TlsConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.0.get_ref().1.wants_write()
            && let Poll::Ready(Err(error)) = Pin::new(&mut self.0).poll_flush(cx)
        {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for TlsConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
