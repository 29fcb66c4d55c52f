//! HTTP that came to the port of the Redis protocol.
//!
//! A page of any site that is open in a browser on this machine, or on one that may connect, can send HTTP to any port,
//! with a body of its own choice. Lines of it that are no command would be answered with errors, and the lines of its
//! body executed. So the connection ends at the first line that is HTTP's, before any of its body is read.

use larder_protocol::errors::Code;
use larder_protocol::resp::Request;

use super::state::State;

const ENDED: &str = "Protocol error: this is HTTP, and this port takes the Redis protocol; HTTP has a port of its own (server.http)";

/// Whether a request that is no command, or has not the arguments of one, is a line of HTTP: a method or a header, in
/// any case of letters. `is_line`: it came as words on a line, as HTTP does.
#[cold]
pub(super) fn is_http(request: Request<'_>, is_line: bool) -> bool {
    let begins = |arg: &[u8], with: &str| {
        arg.get(..with.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(with.as_bytes()))
    };
    let name = request.arg(0);
    let last = request.arg(request.len() - 1);
    name.eq_ignore_ascii_case(b"post")
        || begins(name, "host:")
        || (is_line && (name.ends_with(b":") || begins(last, "http/")))
}

/// Ends the connection, once it was answered what came before.
#[cold]
pub(super) fn end(state: &mut State) {
    state.error(Code::BadRequest, ENDED);
    state.closing = true;
    state.core.stats.http_refused.add(1);
    if let Some(times) = state.core.clients.stray_http.note() {
        tracing::warn!(
            times,
            last_from = %state.client.addr,
            "HTTP came to the port of the Redis protocol and was refused: a web page, or a program with the wrong port"
        );
    }
}
