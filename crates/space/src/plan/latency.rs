//! The latency and throughput of clients that share the servers.
//!
//! Clients form a closed system: each waits for its reply before its next request. Mean value analysis (Reiser and
//! Lavenberg, 1980) adds one client at a time, which finds the queues that the others have in its absence. All
//! processors are assumed to be equally loaded, because skew is already counted as work of all. An operation that
//! several servers execute in parallel waits for one path through them, not for the sum, but all of its work fills the
//! queues. This is an approximation, which is exact for one server.

/// The mean operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// The total of all processors.
    pub work_us: f64,
    /// The time from request to reply on idle servers.
    pub idle_us: f64,
    /// The part of that time in which no processor works on the operation.
    pub waits_us: f64,
    pub processors: f64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct SteadyState {
    /// Operations per second.
    pub throughput: f64,
    pub latency_us: f64,
    /// The factor by which load increases the processing time.
    pub stretch: f64,
}

/// The maximum number of clients. More make no visible difference.
const CLIENTS_MAX: u32 = 100_000;

pub(super) fn solve_steady_state(load: &Load, clients: u32) -> SteadyState {
    let of_a_processor = load.work_us / load.processors;
    let path = load.idle_us - load.waits_us;
    let mut queue = 0.0;
    let mut steady = SteadyState {
        throughput: 0.0,
        latency_us: load.idle_us,
        stretch: 1.0,
    };
    for clients in 1..=clients.min(CLIENTS_MAX) {
        let clients = f64::from(clients);
        let stretch = 1.0 + queue;
        let latency = (load.waits_us + path * stretch).max(clients * of_a_processor);
        let rate = clients / latency.max(f64::MIN_POSITIVE);
        queue = (rate * of_a_processor * stretch).min(clients);
        steady = SteadyState {
            throughput: rate * 1e6,
            latency_us: latency,
            stretch: if path > 0.0 {
                (latency - load.waits_us) / path
            } else {
                1.0
            },
        };
    }
    steady
}
