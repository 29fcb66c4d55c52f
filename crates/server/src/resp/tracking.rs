//! CLIENT TRACKING, CACHING, TRACKINGINFO and GETREDIR, and the choice of tracked reads (see `clients::tracking`).

use std::sync::Arc;

use larder_protocol::commands::{Command, Id};
use larder_protocol::errors::Code;
use larder_protocol::resp::Request;

use super::dispatch::integer;
use super::session::WaitCondition;
use super::state::ConnectionState;
use super::subject::{CommandSubject, is_of_table};
use crate::catalog::{Lookup, Snapshot};
use crate::clients::{Client, Mode, Tracker};
use crate::error::{Refusal, show};

/// The tracking entries of a client may use `1 / MEMORY_DIVISOR` of its memory limit.
const MEMORY_DIVISOR: usize = 4;

/// The options of CLIENT TRACKING ON.
struct Options {
    redirect: Option<Arc<Client>>,
    mode: Mode,
    noloop: bool,
    prefixes: Vec<Box<[u8]>>,
}

fn bad_request<T>(message: &str) -> Result<T, Refusal> {
    Err((Code::BadRequest, message.to_owned()))
}

pub(super) fn tracking(state: &mut ConnectionState, request: Request<'_>) {
    match request.arg(2).to_ascii_uppercase().as_slice() {
        b"ON" => match Options::parse(state, request) {
            Ok(options) => turn_on(state, options),
            Err(refusal) => state.refuse(refusal),
        },
        b"OFF" => {
            turn_off(state);
            state.encoder().ok();
        }
        _ => state.error(Code::Syntax, "syntax error"),
    }
}

impl Options {
    fn parse(state: &ConnectionState, request: Request<'_>) -> Result<Options, Refusal> {
        let syntax = || Err((Code::Syntax, "syntax error".to_owned()));
        let (mut redirect, mut prefixes) = (None, Vec::new());
        let (mut broadcast, mut opt_in, mut opt_out, mut noloop) = (false, false, false, false);
        let mut at = 3;
        while at < request.len() {
            let has_value = at + 1 < request.len();
            match request.arg(at).to_ascii_uppercase().as_slice() {
                b"REDIRECT" if has_value => {
                    at += 1;
                    if redirect.is_some() {
                        return bad_request("A client can only redirect to a single other client");
                    }
                    redirect = Some(find_client(state, request.arg(at))?);
                }
                b"PREFIX" if has_value => {
                    at += 1;
                    prefixes.push(Box::from(request.arg(at)));
                }
                b"BCAST" => broadcast = true,
                b"OPTIN" => opt_in = true,
                b"OPTOUT" => opt_out = true,
                b"NOLOOP" => noloop = true,
                _ => return syntax(),
            }
            at += 1;
        }
        if !broadcast && !prefixes.is_empty() {
            return bad_request("PREFIX option requires BCAST mode to be enabled");
        }
        if opt_in && opt_out {
            return bad_request("You can't specify both OPTIN mode and OPTOUT mode");
        }
        if broadcast && (opt_in || opt_out) {
            return bad_request("OPTIN and OPTOUT are not compatible with BCAST");
        }
        let mode = match (broadcast, opt_in, opt_out) {
            (true, ..) => Mode::Broadcast,
            (_, true, _) => Mode::OptIn,
            (_, _, true) => Mode::OptOut,
            _ => Mode::AllReads,
        };
        if let Some(before) = state.client.tracker.load_full() {
            prefixes.splice(0..0, before.prefixes.iter().cloned());
            let is_broadcast = before.mode == Mode::Broadcast;
            if is_broadcast != broadcast {
                return bad_request(
                    "You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it with a different mode.",
                );
            }
            if before.mode != mode {
                return bad_request(
                    "You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it with a different mode.",
                );
            }
        }
        prefixes = deduplicate(prefixes);
        check_overlap(&prefixes)?;
        Ok(Options {
            redirect: redirect.filter(|client| client.id != state.client.id),
            mode,
            noloop,
            prefixes,
        })
    }
}

fn find_client(state: &ConnectionState, id: &[u8]) -> Result<Arc<Client>, Refusal> {
    let Some(id) = integer(id) else {
        return bad_request("value is not an integer or out of range");
    };
    let found = u64::try_from(id).ok();
    match found.and_then(|id| state.core.clients.find(id)) {
        Some(client) => Ok(client),
        None => bad_request("The client ID you want redirect to does not exist"),
    }
}

fn deduplicate(prefixes: Vec<Box<[u8]>>) -> Vec<Box<[u8]>> {
    let mut unique: Vec<Box<[u8]>> = Vec::with_capacity(prefixes.len());
    for prefix in prefixes {
        if !unique.contains(&prefix) {
            unique.push(prefix);
        }
    }
    unique
}

/// # Errors
/// One prefix begins with another, so a change would be reported twice.
fn check_overlap(prefixes: &[Box<[u8]>]) -> Result<(), Refusal> {
    let mut sorted: Vec<&[u8]> = prefixes.iter().map(|prefix| &**prefix).collect();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[1].starts_with(pair[0])) {
        None => Ok(()),
        Some(pair) => bad_request(&format!(
            "Prefix '{}' overlaps with an existing prefix '{}'. Prefixes for a single client must not overlap.",
            show(pair[1]),
            show(pair[0])
        )),
    }
}

fn turn_on(state: &mut ConnectionState, options: Options) {
    let was_on = state.client.tracker.load().is_some();
    turn_off(state);
    let bytes_max = state.core.clients.limits.per_client_bytes / MEMORY_DIVISOR;
    let mut tracker = Tracker::new(state.client.clone(), options.mode, bytes_max);
    tracker.redirect = options.redirect;
    tracker.prefixes = options.prefixes;
    tracker.noloop = options.noloop;
    let tracker = Arc::new(tracker);
    let tracking = &state.core.shared.tables.tracking;
    tracking.turn_on(tracker.clone());
    if was_on {
        // Earlier reads were recorded with the previous options, so the client must discard them.
        tracker.send(None);
    }
    state.encoder().ok();
}

/// Turns tracking off, for CLIENT TRACKING OFF and RESET.
pub(super) fn turn_off(state: &mut ConnectionState) {
    state.caching = None;
    if let Some(tracker) = state.client.tracker.load_full() {
        state.core.shared.tables.tracking.turn_off(&tracker);
    }
}

pub(super) fn caching(state: &mut ConnectionState, word: &[u8]) {
    let mode = state.client.tracker.load().as_ref().map(|own| own.mode);
    let Some(mode) = mode.filter(|mode| matches!(mode, Mode::OptIn | Mode::OptOut)) else {
        return state.error(
            Code::BadRequest,
            "CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled",
        );
    };
    let is_yes = match word.to_ascii_uppercase().as_slice() {
        b"YES" => true,
        b"NO" => false,
        _ => return state.error(Code::Syntax, "syntax error"),
    };
    match (is_yes, mode) {
        (true, Mode::OptOut) => state.error(
            Code::BadRequest,
            "CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.",
        ),
        (false, Mode::OptIn) => state.error(
            Code::BadRequest,
            "CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.",
        ),
        _ => {
            state.caching = Some(is_yes);
            state.encoder().ok();
        }
    }
}

/// Executes CLIENT TRACKINGINFO.
pub(super) fn info(state: &mut ConnectionState) {
    let tracker = state.client.tracker.load_full();
    let mut flags = Vec::new();
    match tracker.as_ref().map(|tracker| tracker.mode) {
        None => flags.push("off"),
        Some(Mode::AllReads) => flags.push("on"),
        Some(Mode::Broadcast) => flags.extend(["on", "bcast"]),
        Some(Mode::OptIn) => flags.extend(["on", "optin"]),
        Some(Mode::OptOut) => flags.extend(["on", "optout"]),
    }
    match state.caching {
        Some(true) => flags.push("caching-yes"),
        Some(false) => flags.push("caching-no"),
        None => {}
    }
    if tracker.as_ref().is_some_and(|tracker| tracker.noloop) {
        flags.push("noloop");
    }
    if tracker.as_ref().is_some_and(|tracker| tracker.is_broken()) {
        flags.push("broken_redirect");
    }
    let redirect = redirect_id(tracker.as_deref());
    let mut encoder = state.encoder();
    encoder.map(3);
    encoder.text("flags");
    encoder.set(flags.len());
    flags.iter().for_each(|flag| encoder.text(flag));
    encoder.text("redirect");
    encoder.integer(redirect);
    encoder.text("prefixes");
    let prefixes = tracker
        .as_ref()
        .map_or(&[][..], |tracker| &tracker.prefixes);
    encoder.array(prefixes.len());
    prefixes.iter().for_each(|prefix| encoder.bulk(prefix));
}

/// Executes CLIENT GETREDIR.
pub(super) fn get_redirect(state: &mut ConnectionState) {
    let redirect = redirect_id(state.client.tracker.load().as_deref());
    state.encoder().integer(redirect);
}

/// Returns the id of the connection that receives the invalidations: 0 for the client itself, -1 if tracking is off.
fn redirect_id(tracker: Option<&Tracker>) -> i64 {
    tracker.map_or(-1, |tracker| match &tracker.redirect {
        Some(redirect) => i64::try_from(redirect.id).unwrap_or(i64::MAX),
        None => 0,
    })
}

/// Decides whether the reads of the next command are tracked. If the decision differs from that of forwarded commands,
/// the command waits for their replies.
pub(super) fn before_command(
    state: &mut ConnectionState,
    command: Command<'_>,
) -> Option<WaitCondition> {
    let tracker = state.client.tracker.load_full()?;
    if command.id() == Id::Client {
        return None;
    }
    let is_tracked = match tracker.mode {
        Mode::AllReads => true,
        Mode::Broadcast => false,
        Mode::OptIn => state.caching == Some(true),
        Mode::OptOut => state.caching != Some(false),
    };
    if is_tracked != tracker.tracks_reads() {
        if state.forwarded.is_some() {
            return Some(WaitCondition::ForwardedReplies);
        }
        tracker.set_tracks_reads(is_tracked);
    }
    None
}

/// Resets CLIENT CACHING after the next command was placed. In a transaction, it applies until EXEC.
pub(super) fn after_command(state: &mut ConnectionState, command: Command<'_>) {
    if state.caching.is_some()
        && command.id() != Id::Client
        && (state.transaction.is_none() || command.id() == Id::Exec)
    {
        state.caching = None;
    }
}

/// Records the keys of stores that a client is about to read.
pub(super) fn note_record_reads(
    state: &ConnectionState,
    snapshot: &Snapshot,
    command: Command<'_>,
) {
    let Some(tracker) = find_read_tracker(state) else {
        return;
    };
    let tracking = &state.core.shared.tables.tracking;
    for key in command.keys().filter(|key| !is_of_table(snapshot, key)) {
        tracking.track_record(&tracker, key);
        let name = key.split(|&byte| byte == b':').next().unwrap_or_default();
        let version = |snapshot: &Snapshot| match snapshot.lookup(name) {
            Lookup::Live(live) => Some(live.version_id),
            _ => None,
        };
        if version(snapshot) != version(&state.core.shared.catalog.load()) {
            // Another version went live before the key was recorded.
            tracker.send(Some(key));
        }
    }
}

/// Invalidates keys that other nodes serve, because the client receives no notification of their changes.
pub(super) fn note_remote_reads(
    state: &ConnectionState,
    command: Command<'_>,
    subject: CommandSubject,
) {
    if state.core.nodes.is_none() || command.writes() {
        return;
    }
    let Some(tracker) = find_read_tracker(state) else {
        return;
    };
    let tables = &state.core.tables;
    let handle = &state.core.shared.tables;
    for key in command.keys() {
        let is_local = subject == CommandSubject::Rows
            && handle.owner_of(key) < handle.cores()
            && !tables.is_computed(key);
        if !is_local {
            tracker.send(Some(key));
        }
    }
}

fn find_read_tracker(state: &ConnectionState) -> Option<Arc<Tracker>> {
    if !state.core.tables.is_tracking() {
        return None;
    }
    let tracker = state.client.tracker.load_full()?;
    tracker.tracks_reads().then_some(tracker)
}
