//! TLS that came to a port without. Its client reads our refusal as TLS too, and can only say that it makes no sense; so the log says
//! what to do.

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
