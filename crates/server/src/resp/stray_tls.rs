//! Detection of TLS on a plaintext port. The client interprets the error reply as TLS and reports only a protocol
//! error, so the server's log explains the cause.

use super::state::ConnectionState;

#[cold]
pub(super) fn log_warning(state: &ConnectionState) {
    if let Some(times) = state.core.clients.stray_tls_log.note() {
        tracing::warn!(
            times,
            last_from = %state.client.addr,
            "rejected a TLS client because this port does not use TLS: set server.tls_cert and server.tls_key, or configure the client without TLS"
        );
    }
}
