//! Detection of HTTP on the port of the Redis protocol.
//!
//! A web page that is open in a browser on this machine, or on any machine that may connect, can send HTTP with an
//! arbitrary body to any port. If each line were treated as a command, the lines of the body would be executed. The
//! connection is therefore closed at the first line of HTTP, before any of its body is read.

use larder_protocol::errors::Code;
use larder_protocol::resp::Request;

use super::state::ConnectionState;

const HTTP_REJECTED: &str = "Protocol error: this port accepts the Redis protocol, not HTTP; send HTTP requests to the port of server.http";

/// Returns whether an invalid request is a line of HTTP: a method or a header, in any case. `is_line`: the request
/// arrived as words on a line (an inline command), as HTTP does.
#[cold]
pub(super) fn is_http(request: Request<'_>, is_inline: bool) -> bool {
    let starts_with = |arg: &[u8], with: &str| {
        arg.get(..with.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(with.as_bytes()))
    };
    let name = request.arg(0);
    let last = request.arg(request.len() - 1);
    name.eq_ignore_ascii_case(b"post")
        || starts_with(name, "host:")
        || (is_inline && (name.ends_with(b":") || starts_with(last, "http/")))
}

/// Sends an error after the preceding replies and closes the connection.
#[cold]
pub(super) fn reject(state: &mut ConnectionState) {
    state.error(Code::BadRequest, HTTP_REJECTED);
    state.closing = true;
    state.core.stats.http_refused.add(1);
    if let Some(times) = state.core.clients.stray_http_log.note() {
        tracing::warn!(
            times,
            last_from = %state.client.addr,
            "rejected HTTP on the port of the Redis protocol: the sender is a web page, or a program with the wrong port"
        );
    }
}
