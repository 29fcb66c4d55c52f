//! Statistics and the slow log: records each executed command.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use larder_protocol::commands::{Command, OwnedCommand, Spec};

use super::state::State;
use crate::stats::SlowEntry;

/// Limits on the arguments of a slow log entry, as in Redis.
const SLOW_ARGS_MAX: usize = 32;
const SLOW_ARG_BYTES_MAX: usize = 128;

/// Records the statistics of an executed command, and adds it to the slow log if it was slow.
pub(super) fn finish<'a>(
    state: &mut State,
    command: &'static Spec,
    clock: &mut Instant,
    args: impl Iterator<Item = &'a [u8]>,
) {
    let now = Instant::now();
    let took = now - std::mem::replace(clock, now);
    let core = &state.core;
    let series = match &state.series {
        Some(store) => store.of(&core.stats, command.id),
        None => core.plain_series(command),
    };
    series.record(1, took);
    series.record_keys(state.keys.0, state.keys.1);
    if state.failed {
        series.record_error();
    }
    state.client.set_last_command(command.id as usize);
    if core.shared.stats.is_slow(took) {
        record_slow(state, took, args);
    }
}

#[cold]
pub(super) fn record_slow<'a>(state: &State, took: Duration, args: impl Iterator<Item = &'a [u8]>) {
    let shorten = |arg: &[u8]| match arg.get(..SLOW_ARG_BYTES_MAX) {
        None => arg.to_vec(),
        Some(kept) => {
            let more = format!("... ({} more bytes)", arg.len() - SLOW_ARG_BYTES_MAX);
            [kept, more.as_bytes()].concat()
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
        took,
        args: shown,
        client_addr: state.client.addr.to_string(),
        client_name: state.client.names().name,
    });
}

/// Returns the command with only the arguments that the slow log shows.
pub(super) fn shortened(command: Command<'_>) -> OwnedCommand {
    let args = command.args().take(SLOW_ARGS_MAX);
    command.with_args(args.map(|arg| &arg[..arg.len().min(SLOW_ARG_BYTES_MAX + 1)]))
}
