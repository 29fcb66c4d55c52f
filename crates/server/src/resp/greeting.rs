//! AUTH and HELLO, which a client may also send before the server is ready (`loading`).

use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Proto, Request};

use super::describe;
use super::dispatch::integer;
use crate::Shared;
use crate::clients::Client;
use crate::error::{Error, Refusal};

const NO_PASSWORD: &str = "AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?";
const WRONG_PASSWORD: &str = "invalid username-password pair or user is disabled.";

/// The result of a connection's AUTH and HELLO commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Greeting {
    pub authenticated: bool,
    pub proto: Proto,
}

impl Greeting {
    /// Returns the state of a new connection.
    pub fn new(shared: &Shared) -> Greeting {
        Greeting {
            authenticated: shared.password().is_none(),
            proto: Proto::Resp2,
        }
    }
}

/// Returns whether a request contains a password whose check is delayed by the rate limit.
pub(super) fn is_throttled(shared: &Shared, client: &Client, request: Request<'_>) -> bool {
    let name = request.arg(0);
    let has_password = name.eq_ignore_ascii_case(b"AUTH")
        || (name.eq_ignore_ascii_case(b"HELLO") && request.len() > 2);
    has_password
        && !shared.password().is_none()
        && !shared.guess_limiter.wait(client.addr.ip()).is_zero()
}

/// Checks the password of AUTH.
///
/// # Errors
/// The error to return to the client.
pub(super) fn auth(shared: &Shared, client: &Client, request: Request<'_>) -> Result<(), Refusal> {
    match request.len() {
        2 if shared.password().is_none() => Err((Code::BadRequest, NO_PASSWORD.to_owned())),
        2 => log_in(shared, client, b"default", request.arg(1)),
        3 => log_in(shared, client, request.arg(1), request.arg(2)),
        _ => Err((Code::Syntax, "syntax error".to_owned())),
    }
}

/// Checks a user name and password. As in Redis, the user `default` needs no password if none is configured.
fn log_in(shared: &Shared, client: &Client, user: &[u8], password: &[u8]) -> Result<(), Refusal> {
    let expected = shared.password();
    let is_correct = user == b"default" && (expected.is_none() || expected.matches(password));
    match shared.guess_limiter.check(client.addr.ip(), is_correct) {
        Ok(()) => Ok(()),
        Err(Error::WrongPassword) => Err((Code::WrongPassword, WRONG_PASSWORD.to_owned())),
        Err(error) => Err((error.code(), error.to_string())),
    }
}

/// Executes HELLO, except for its reply.
///
/// # Errors
/// The error to return to the client. A correct password takes effect even then.
pub(super) fn hello(
    shared: &Shared,
    client: &Client,
    greeting: &mut Greeting,
    request: Request<'_>,
) -> Result<(), Refusal> {
    let refused = |code, message: &str| Err((code, message.to_owned()));
    let proto = match request.get(1).map(integer) {
        None => greeting.proto,
        Some(Some(2)) => Proto::Resp2,
        Some(Some(3)) => Proto::Resp3,
        Some(Some(_)) => return refused(Code::NoProto, "unsupported protocol version"),
        Some(None) => {
            let message = "Protocol version is not an integer or out of range";
            return refused(Code::BadRequest, message);
        }
    };
    let (mut at, mut name) = (2, None);
    while let Some(option) = request.get(at) {
        match (option.to_ascii_uppercase().as_slice(), request.len() - at) {
            (b"AUTH", 3..) => {
                log_in(shared, client, request.arg(at + 1), request.arg(at + 2))?;
                greeting.authenticated = true;
                at += 3;
            }
            (b"SETNAME", 2..) => {
                name = Some(request.arg(at + 1));
                at += 2;
            }
            _ => {
                let shown = String::from_utf8_lossy(option);
                let message = format!("Syntax error in HELLO option '{shown}'");
                return Err((Code::Syntax, message));
            }
        }
    }
    if !greeting.authenticated {
        return refused(
            Code::NoAuth,
            "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> \
             option can be used to authenticate the client and select the RESP protocol version at the same time",
        );
    }
    if let Some(name) = name {
        set_name(client, name)?;
    }
    greeting.proto = proto;
    Ok(())
}

/// Writes the reply of HELLO in the chosen protocol version.
pub(super) fn answer_hello(encoder: &mut Encoder<'_>, id: u64, mode: &str) {
    encoder.map(7);
    for (key, value) in [("server", "redis"), ("version", describe::REDIS_VERSION)] {
        encoder.text(key);
        encoder.text(value);
    }
    encoder.text("proto");
    encoder.integer(encoder.proto.number());
    encoder.text("id");
    encoder.count(id);
    for (key, value) in [("mode", mode), ("role", "master")] {
        encoder.text(key);
        encoder.text(value);
    }
    encoder.text("modules");
    describe::put_modules(encoder);
}

/// Sets the name of a connection.
///
/// # Errors
/// The error to return to the client.
pub(super) fn set_name(client: &Client, name: &[u8]) -> Result<(), Refusal> {
    match printable(name) {
        Some(name) => {
            client.change_names(|names| names.name = name);
            Ok(())
        }
        None => {
            let message = "Client names cannot contain spaces, newlines or special characters.";
            Err((Code::BadRequest, message.to_owned()))
        }
    }
}

/// Returns the name as text if it may appear in a line of CLIENT LIST.
pub(super) fn printable(name: &[u8]) -> Option<String> {
    const NAME_BYTES_MAX: usize = 1024;
    let ok = name.len() <= NAME_BYTES_MAX && name.iter().all(u8::is_ascii_graphic);
    ok.then(|| String::from_utf8_lossy(name).into_owned())
}
