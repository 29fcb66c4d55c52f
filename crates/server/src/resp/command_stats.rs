//! Statistics and the slow log: records each executed command.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use larder_protocol::commands::{Command, OwnedCommand, Spec};

use super::state::ConnectionState;
use crate::stats::SlowEntry;

/// Limits on the arguments of a slow log entry, as in Redis.
const SLOW_ARGS_MAX: usize = 32;
const SLOW_ARG_BYTES_MAX: usize = 128;

/// Records the statistics of an executed command, and adds it to the slow log if it was slow.
pub(super) fn record_command<'a>(
    state: &mut ConnectionState,
    command: &'static Spec,
    clock: &mut Instant,
    args: impl Iterator<Item = &'a [u8]>,
) {
    let now = Instant::now();
    let elapsed = now - std::mem::replace(clock, now);
    let core = &state.core;
    let series = match &state.series {
        Some(store) => store.of(&core.stats, command.id),
        None => core.plain_series(command),
    };
    series.record(1, elapsed);
    series.record_keys(state.keys.0, state.keys.1);
    if state.failed {
        series.record_error();
    }
    state.client.set_last_command(command.id as usize);
    if core.shared.stats.is_slow(elapsed) {
        record_slow(state, elapsed, args);
    }
}

#[cold]
pub(super) fn record_slow<'a>(
    state: &ConnectionState,
    elapsed: Duration,
    args: impl Iterator<Item = &'a [u8]>,
) {
    let shorten = |arg: &[u8]| match arg.get(..SLOW_ARG_BYTES_MAX) {
        None => arg.to_vec(),
        Some(prefix) => {
            let more = format!("... ({} more bytes)", arg.len() - SLOW_ARG_BYTES_MAX);
            [prefix, more.as_bytes()].concat()
        }
    };
    let mut shown: Vec<Vec<u8>> = args.take(SLOW_ARGS_MAX).map(shorten).collect();
    // Passwords never appear in the slow log.
    if shown.first().is_some_and(|name| {
        name.eq_ignore_ascii_case(b"AUTH") || name.eq_ignore_ascii_case(b"HELLO")
    }) {
        shown.truncate(1);
    }
    let at = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    state.core.shared.stats.record_slow(SlowEntry {
        id: 0,
        at,
        took: elapsed,
        args: shown,
        client_addr: state.client.addr.to_string(),
        client_name: state.client.names().name,
    });
}

/// Returns the command with only the arguments that the slow log shows.
pub(super) fn shorten_args(command: Command<'_>) -> OwnedCommand {
    let args = command.args().take(SLOW_ARGS_MAX);
    command.with_args(args.map(|arg| &arg[..arg.len().min(SLOW_ARG_BYTES_MAX + 1)]))
}
