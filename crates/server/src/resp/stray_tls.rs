//! Detection of TLS on a plaintext port. The client interprets the error reply as TLS and reports only a protocol
//! error, so the server's log explains the cause.

use super::state::State;

#[cold]
pub(super) fn tell(state: &State) {
    if let Some(times) = state.core.clients.stray_tls.note() {
        tracing::warn!(
            times,
            last_from = %state.client.addr,
            "a client with TLS was refused, since this port has none: set server.tls_cert and server.tls_key, or have it connect without"
        );
    }
}
