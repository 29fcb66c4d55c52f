//! How long clients wait, and how much they get done, when they share the servers.
//!
//! Clients are a closed system: each waits for its reply and asks again. Mean value analysis (Reiser and Lavenberg, 1980) adds one client after the
//! other: the newcomer finds the queues that the others leave in its absence. All processors are taken to be alike, which they are after the skew
//! is counted as work of all. An operation that is worked on by several servers at once waits for one path through them, not for
//! their sum, while its whole work fills the queues; that is an approximation, and exact where there is one server.

/// An operation in the mean.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// On all processors together.
    pub work_us: f64,
    /// From request to reply when nothing else runs.
    pub idle_us: f64,
    /// The part of that in which no processor works for it.
    pub waits_us: f64,
    pub processors: f64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Steady {
    /// Operations a second.
    pub throughput: f64,
    pub latency_us: f64,
    /// How many times longer work takes than when idle.
    pub stretch: f64,
}

/// More clients than this make no difference that could be seen.
const CLIENTS_MAX: u32 = 100_000;

pub(super) fn steady(load: &Load, clients: u32) -> Steady {
    let of_a_processor = load.work_us / load.processors;
    let path = load.idle_us - load.waits_us;
    let mut queue = 0.0;
    let mut steady = Steady {
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
        steady = Steady {
            throughput: rate * 1e6,
            latency_us: latency,
            stretch: match path > 0.0 {
                true => (latency - load.waits_us) / path,
                false => 1.0,
            },
        };
    }
    steady
}
