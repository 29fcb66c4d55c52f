//! The Lua scripts that EVAL, EVALSHA and SCRIPT accept. Each is implemented by a function of [`super::tables`]; there
//! is no Lua interpreter.
//!
//! A script is identified by its exact text, and therefore by its SHA-1. The libraries have not changed these texts in
//! any of their releases.

use larder_protocol::errors::Code;
use larder_protocol::resp::Request;

use super::state::ConnectionState;
use crate::error::Refusal;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Script {
    LockRelease,
    LockExtend,
    LockReacquire,
    IncrementPresent,
    Increment,
    RateLimit,
}

struct KnownScript {
    script: Script,
    /// In lower case.
    sha1: &'static str,
    text: &'static str,
    /// Minimum number of arguments after the key; further ones are ignored.
    args_min: usize,
}

const KNOWN_SCRIPTS: [KnownScript; 6] = [
    // redis-py's Lock, which django-redis also uses.
    KnownScript {
        script: Script::LockRelease,
        sha1: "c3f8721cbb97f72bc19e972846bd7aaf91901658",
        text: include_str!("known_scripts/redis-py-release.lua"),
        args_min: 1,
    },
    KnownScript {
        script: Script::LockExtend,
        sha1: "a4e8783852e6b949f9ef3a97212805108459a890",
        text: include_str!("known_scripts/redis-py-extend.lua"),
        args_min: 3,
    },
    KnownScript {
        script: Script::LockReacquire,
        sha1: "1cac51482acf5858da00f6d685d68f886cd6b6b2",
        text: include_str!("known_scripts/redis-py-reacquire.lua"),
        args_min: 2,
    },
    // django-redis's cache.incr, without and with ignore_key_check.
    KnownScript {
        script: Script::IncrementPresent,
        sha1: "f4a7da3e5d8ea3b46642af08427151cae0190400",
        text: include_str!("known_scripts/django-redis-incr-present.lua"),
        args_min: 1,
    },
    KnownScript {
        script: Script::Increment,
        sha1: "4d15273b16b10c15e1d9202cbe93c959ab7d250b",
        text: include_str!("known_scripts/django-redis-incr.lua"),
        args_min: 1,
    },
    // rate-limiter-flexible's RateLimiterRedis.
    KnownScript {
        script: Script::RateLimit,
        sha1: "a1de965f42e177aa339706bd580f049065eca79a",
        text: include_str!("known_scripts/rate-limiter-flexible.lua"),
        args_min: 2,
    },
];

const UNSUPPORTED_SCRIPT: &str = "this script is not supported: larder does not run Lua, and executes only the scripts of redis-py's Lock, django-redis and rate-limiter-flexible; \
     use SET IFEQ or DELEX to compare and change a string, OBJ.CHANGE to change an object, and MULTI with WATCH for several keys";

fn find_by_text(text: &[u8]) -> Result<&'static KnownScript, Refusal> {
    let found = KNOWN_SCRIPTS
        .iter()
        .find(|found| found.text.as_bytes() == text);
    found.ok_or_else(|| (Code::BadRequest, UNSUPPORTED_SCRIPT.to_owned()))
}

fn find_by_sha1(sha1: &[u8]) -> Option<&'static KnownScript> {
    KNOWN_SCRIPTS
        .iter()
        .find(|found| found.sha1.as_bytes().eq_ignore_ascii_case(sha1))
}

/// A call of a known script.
pub(super) struct ScriptCall<'a> {
    pub script: Script,
    pub key: &'a [u8],
    /// At least `args_min` arguments.
    pub args: Vec<&'a [u8]>,
}

impl<'a> ScriptCall<'a> {
    /// Parses EVAL, or EVALSHA if `by_hash` is set.
    ///
    /// # Errors
    /// The script is unknown, or the number of keys or arguments does not fit it.
    pub fn parse(request: Request<'a>, by_hash: bool) -> Result<ScriptCall<'a>, Refusal> {
        let bad = |message: String| (Code::BadRequest, message);
        let keys = larder_types::integer(request.arg(2))
            .ok_or_else(|| bad(super::dispatch::NOT_AN_INTEGER.to_owned()))?;
        let keys = usize::try_from(keys)
            .map_err(|_| bad("Number of keys can't be negative".to_owned()))?;
        if keys > request.len() - 3 {
            let message = "Number of keys can't be greater than number of args";
            return Err(bad(message.to_owned()));
        }
        let found = if by_hash {
            find_by_sha1(request.arg(1)).ok_or_else(|| {
                let message = "No matching script. Please use EVAL.".to_owned();
                (Code::NoScript, message)
            })?
        } else {
            find_by_text(request.arg(1))?
        };
        let args: Vec<&[u8]> = request.args().skip(4).collect();
        if keys != 1 || args.len() < found.args_min {
            let message = format!("the script takes 1 key and {} arguments", found.args_min);
            return Err(bad(message));
        }
        Ok(ScriptCall {
            script: found.script,
            key: request.arg(3),
            args,
        })
    }
}

/// Executes SCRIPT LOAD, EXISTS and FLUSH. The known scripts are always loaded.
pub(super) fn script(state: &mut ConnectionState, request: Request<'_>) {
    match request.arg(1).to_ascii_uppercase().as_slice() {
        b"LOAD" => match find_by_text(request.arg(2)) {
            Ok(found) => state.encoder().bulk(found.sha1.as_bytes()),
            Err(refusal) => state.refuse(refusal),
        },
        b"EXISTS" => {
            let mut encoder = state.encoder();
            encoder.array(request.len() - 2);
            for sha1 in request.args().skip(2) {
                encoder.integer(i64::from(find_by_sha1(sha1).is_some()));
            }
        }
        // FLUSH is a no-op: the known scripts cannot be unloaded.
        _ => match request.get(2).map(<[u8]>::to_ascii_uppercase).as_deref() {
            None | Some(b"ASYNC" | b"SYNC") => state.encoder().ok(),
            Some(_) => {
                let message = "SCRIPT FLUSH only support SYNC|ASYNC option";
                state.error(Code::BadRequest, message);
            }
        },
    }
}
