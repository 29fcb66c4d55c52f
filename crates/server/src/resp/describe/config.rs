//! CONFIG: the settings that monitoring tools and client libraries read, under their Redis names. Only
//! `notify-keyspace-events` can be changed.

use larder_protocol::errors::Code;
use larder_protocol::resp::Request;

use super::super::state::ConnectionState;
use super::encode_pair;
use crate::glob::Glob;

/// The only setting that CONFIG SET changes, until the server restarts.
const EVENTS: &[u8] = b"notify-keyspace-events";

/// Maximum number of patterns of one CONFIG GET.
const PATTERNS_MAX: usize = 1024;

pub(in crate::resp) fn config(state: &mut ConnectionState, request: Request<'_>) {
    match request.arg(1).to_ascii_uppercase().as_slice() {
        b"GET" => {}
        b"SET" if request.len() == 4 && request.arg(2).eq_ignore_ascii_case(EVENTS) => {
            return match state.core.shared.tables.events.select(request.arg(3)) {
                Some(()) => state.encoder().ok(),
                None => state.error(
                    Code::BadRequest,
                    "CONFIG SET failed (possibly related to argument 'notify-keyspace-events') - Invalid event class character. Use 'Ag$lshzxeKEtmdn'.",
                ),
            };
        }
        b"SET" => {
            return state.error(
                Code::BadRequest,
                "CONFIG SET is not supported; change larder.toml and restart, or use PATCH /v1/settings for the settings that may change at run time",
            );
        }
        b"RESETSTAT" => {
            state.core.shared.stats.reset();
            return state.encoder().ok();
        }
        _ => {
            return state.error(
                Code::BadRequest,
                "CONFIG REWRITE is not supported: the server never writes its configuration",
            );
        }
    }
    let settings = redis_settings(state);
    let patterns = request.args().skip(2).take(PATTERNS_MAX + 1);
    let globs: Result<Vec<Glob>, _> = patterns
        .map(|pattern| Glob::parse(&pattern.to_ascii_lowercase()))
        .collect();
    let globs = match globs {
        Ok(globs) if globs.len() <= PATTERNS_MAX => globs,
        Ok(_) => {
            let message = format!("CONFIG GET takes at most {PATTERNS_MAX} patterns");
            return state.error(Code::BadRequest, &message);
        }
        Err(refusal) => return state.refuse(refusal),
    };
    let matches_any = |name: &str| globs.iter().any(|glob| glob.matches(name.as_bytes()));
    let found: Vec<&(&str, String)> = settings
        .iter()
        .filter(|(name, _)| matches_any(name))
        .collect();
    let mut encoder = state.encoder();
    encoder.map(found.len());
    found
        .into_iter()
        .for_each(|(name, value)| encode_pair(&mut encoder, name, value));
}

/// Returns the settings that monitoring tools and client libraries read, under their Redis names.
fn redis_settings(state: &ConnectionState) -> Vec<(&'static str, String)> {
    let core = &state.core;
    let config = &core.shared.config;
    let threshold_us = core.shared.settings.in_force().slowlog_threshold_us;
    vec![
        ("appendonly", "no".to_owned()),
        ("databases", "1".to_owned()),
        ("dir", config.server.data.display().to_string()),
        (
            "maxclients",
            core.shared.descriptors.resp_connections().to_string(),
        ),
        ("maxmemory", "0".to_owned()),
        (
            "maxmemory-clients",
            core.clients.limits.total_bytes.to_string(),
        ),
        ("maxmemory-policy", "noeviction".to_owned()),
        (
            "notify-keyspace-events",
            core.shared.tables.events.letters(),
        ),
        (
            "proto-max-bulk-len",
            config.server.max_argument_bytes.0.to_string(),
        ),
        ("save", String::new()),
        ("slowlog-log-slower-than", threshold_us.to_string()),
        ("slowlog-max-len", config.slowlog.length.to_string()),
        ("timeout", config.server.idle_timeout_seconds.to_string()),
    ]
}
