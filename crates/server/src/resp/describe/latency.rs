//! LATENCY, SLOWLOG and MEMORY DOCTOR: command durations, from the counters in `stats`.

use larder_protocol::errors::Code;
use larder_protocol::resp::Request;

use super::super::dispatch::{integer, not_an_integer};
use super::super::state::ConnectionState;
use crate::stats::SeriesSnapshot;

pub(in crate::resp) fn latency(state: &mut ConnectionState, request: Request<'_>) {
    match request.arg(1).to_ascii_uppercase().as_slice() {
        b"HISTOGRAM" => latency_histogram(state, request),
        b"RESET" => state.encoder().integer(0),
        b"DOCTOR" => state.encoder().verbatim(
            "Latency is counted per command and store: see LATENCY HISTOGRAM, INFO latencystats, SLOWLOG GET and /metrics.",
        ),
        _ => state.encoder().array(0),
    }
}

fn latency_histogram(state: &mut ConnectionState, request: Request<'_>) {
    let is_selected = |series: &SeriesSnapshot| {
        request.len() == 2
            || request
                .args()
                .skip(2)
                .any(|name| name.eq_ignore_ascii_case(series.command.as_bytes()))
    };
    let mut all = state.core.shared.stats.since_reset().by_command();
    all.retain(is_selected);
    let mut encoder = state.encoder();
    encoder.map(all.len());
    for series in all {
        encoder.text(&series.command.to_ascii_lowercase());
        encoder.map(2);
        encoder.text("calls");
        encoder.count(series.calls());
        encoder.text("histogram_usec");
        let mut steps: Vec<(u64, u64)> = Vec::new();
        for (end_ns, calls) in series.cumulative() {
            // Buckets end at odd nanoseconds; clients expect whole microseconds.
            let has_calls = calls > steps.last().map_or(0, |(_, before)| *before);
            if has_calls {
                steps.push((end_ns.div_ceil(1000), calls));
            }
        }
        steps.reverse();
        steps.dedup_by_key(|(us, _)| *us);
        steps.reverse();
        encoder.map(steps.len());
        for (us, calls) in steps {
            encoder.count(us);
            encoder.count(calls);
        }
    }
}

pub(in crate::resp) fn memory_doctor(state: &mut ConnectionState) {
    state
        .encoder()
        .verbatim("Stores are mapped files; INFO memory reports how much of them is in memory.");
}

pub(in crate::resp) fn slowlog(state: &mut ConnectionState, request: Request<'_>) {
    let shared = state.core.shared.clone();
    let mut log = shared.stats.slowlog();
    match request.arg(1).to_ascii_uppercase().as_slice() {
        b"LEN" => state.encoder().count(log.entries.len() as u64),
        b"RESET" => {
            log.entries.clear();
            state.encoder().ok();
        }
        _ => {
            let count = match request.get(2).map(integer) {
                None => 10,
                Some(Some(-1)) => usize::MAX,
                Some(Some(count)) if count >= 0 => count as usize,
                Some(Some(_)) => {
                    return state.error(
                        Code::BadRequest,
                        "count should be greater than or equal to -1",
                    );
                }
                Some(None) => {
                    not_an_integer::<()>(state);
                    return;
                }
            };
            let mut encoder = state.encoder();
            encoder.array(count.min(log.entries.len()));
            for entry in log.entries.iter().take(count) {
                encoder.array(6);
                encoder.count(entry.id);
                encoder.count(entry.at);
                encoder.count(entry.took.as_micros() as u64);
                encoder.array(entry.args.len());
                entry.args.iter().for_each(|arg| encoder.bulk(arg));
                encoder.text(&entry.client_addr);
                encoder.text(&entry.client_name);
            }
        }
    }
}
