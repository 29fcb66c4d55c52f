//! The listening side of peer connections.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use larder_cluster::map::Incarnation;
use larder_cluster::peer::{Connection, Hello};
use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::Core;
use super::drive::drive;
use super::link::Link;
use super::tls;

/// Maximum number of connections without a completed greeting.
const UNGREETED_MAX: usize = 256;

/// Accepts connections until it is dropped.
pub async fn accept(core: Rc<Core>, listener: TcpListener) {
    let ungreeted = Rc::new(Cell::new(0));
    loop {
        match listener.accept().await {
            Ok((socket, addr)) if ungreeted.get() < UNGREETED_MAX => {
                ungreeted.set(ungreeted.get() + 1);
                tokio::task::spawn_local(serve(core.clone(), socket, addr, ungreeted.clone()));
            }
            Ok((_, addr)) => {
                tracing::warn!(%addr, "too many connections to the peer port send no greeting; check that only nodes can reach it");
            }
            Err(error) => {
                tracing::warn!(%error, "a node's connection cannot be accepted");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn serve(core: Rc<Core>, socket: TcpStream, addr: SocketAddr, ungreeted: Rc<Cell<usize>>) {
    // On failure, small frames wait for acknowledgements, which is harmless.
    let _ = socket.set_nodelay(true);
    let mut connection = Connection::accept(core.options(), core.now_ms());
    core.limit_trust(&mut connection);
    let link = Link::new(connection, true);
    let ungreeted_connection = UngreetedConnection(ungreeted);
    let peer_name = format!("the node at {addr}");
    let greeted = Cell::new(Some(ungreeted_connection));
    match &core.tls {
        None => {
            let check_hello = |hello: &Hello| {
                greeted.take();
                identify_peer(&core, hello, None)
            };
            drive(&core, &link, socket, &peer_name, &check_hello).await;
        }
        Some(tls) => {
            let wait = Duration::from_millis(core.options.greeting_ms);
            let accepted = timeout(wait, tls.accept(socket)).await;
            let accepted = accepted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut));
            let (socket, certificate) = match accepted.and_then(|it| it) {
                Ok(accepted) => accepted,
                Err(error) => {
                    let why = tls::explain(&error);
                    tracing::warn!(%addr, why, "a connection of another node is rejected");
                    return;
                }
            };
            let check_hello = |hello: &Hello| {
                greeted.take();
                identify_peer(&core, hello, Some(&certificate))
            };
            drive(&core, &link, socket, &peer_name, &check_hello).await;
        }
    }
    if link.peer().is_none()
        && let Some(why) = link.end_reason()
    {
        tracing::warn!(%addr, %why, "a connection of another node ended before its greeting");
    }
}

/// Returns the map's entry for a node that sent a hello, if its certificate matches.
fn identify_peer(
    core: &Core,
    hello: &Hello,
    certificate: Option<&CertificateDer<'_>>,
) -> Result<Option<Incarnation>, String> {
    let Some(identity) = core.members.identity(hello.from.node) else {
        return Ok(None);
    };
    if let Some(certificate) = certificate {
        tls::check_names(certificate, &identity)?;
    }
    Ok(Some(identity.incarnation))
}

struct UngreetedConnection(Rc<Cell<usize>>);

impl Drop for UngreetedConnection {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
