//! One trial of all clients: ready, go, each second, done.
//!
//! Invariants:
//!
//! 1. No client receives go before all are ready.
//! 2. The state of a running trial consists of whole seconds of all clients.

use std::collections::VecDeque;
use std::time::Duration;

use super::protocol::{ClientMessage, CoordinatorMessage, LoadShare, SecondReport, TrialResult};
use super::receive::{Event, receive_all};
use super::{ClientConnection, split_load, unexpected_message};
use crate::run::live::{Interval, Live, OnSecond};
use crate::verdict::measure::{Load, Measurements, ReadValidation, StopCondition, Trial};

/// The combined result of all clients.
pub struct MergedResult {
    pub measured: Measurements,
    pub failures: Vec<(String, u64)>,
    pub injected: Vec<(String, u64)>,
}

/// A trial that clients run. Each of them has received its request.
pub struct RunningTrial<'a> {
    pub clients: Vec<&'a ClientConnection>,
    pub live: &'a Live,
    pub silence_max: Duration,
    pub on_second: &'a mut Option<OnSecond>,
    pub should_stop: StopCondition<'a>,
}

impl RunningTrial<'_> {
    /// Runs the trial.
    ///
    /// # Errors
    ///
    /// A client does not get ready, crashes, falls silent or fails. The message names the first one.
    pub fn run(mut self, trial: &Trial) -> Result<MergedResult, String> {
        let count = self.clients.len();
        let mut ready = vec![false; count];
        let mut done: Vec<Option<TrialResult>> = vec![None; count];
        let mut seconds = PendingSeconds::new(count);
        let (mut threads, mut stopped) = (self.live.control().threads, false);
        let clients = std::mem::take(&mut self.clients);
        let all_ready = |ready: &[bool]| ready.iter().all(|ready| *ready);
        receive_all(&clients, self.silence_max, &mut |event| {
            match event {
                Event::Received(index, ClientMessage::Ready) if !ready[index] => {
                    ready[index] = true;
                    if all_ready(&ready) {
                        send_to_all(&clients, |_| CoordinatorMessage::Go)?;
                    }
                }
                Event::Received(index, ClientMessage::Second(second)) if all_ready(&ready) => {
                    seconds.add(index, *second, trial, &mut self);
                }
                Event::Received(index, ClientMessage::Done(it)) if all_ready(&ready) => {
                    done[index] = Some(*it)
                }
                Event::Received(index, other) => {
                    return Err(unexpected_message(clients[index], &other));
                }
                Event::Idle => {}
            }
            let control = self.live.control();
            if control.stop && !stopped && all_ready(&ready) {
                stopped = true;
                send_to_all(&clients, |_| CoordinatorMessage::Stop)?;
            } else if control.stop && !all_ready(&ready) {
                return Err("the run was stopped before all clients were ready".to_owned());
            }
            if control.threads != threads && all_ready(&ready) {
                threads = control.threads;
                let masses: Vec<f64> = clients.iter().map(|client| client.mass).collect();
                let parts = split_load(Load::Threads(threads), &masses);
                send_to_all(&clients, |index| match parts[index] {
                    Some(LoadShare::Threads(threads)) => CoordinatorMessage::Threads(threads),
                    _ => CoordinatorMessage::Threads(0),
                })?;
            }
            Ok(())
        })?;
        merge_results(done.into_iter().flatten())
    }
}

fn merge_results(done: impl Iterator<Item = TrialResult>) -> Result<MergedResult, String> {
    let mut sum: Option<MergedResult> = None;
    let mut clients = Vec::new();
    for one in done {
        // Without the series, which would be the largest part of a report.
        clients.push(Measurements {
            series: Vec::new(),
            ..one.measured.clone()
        });
        match &mut sum {
            None => {
                sum = Some(MergedResult {
                    measured: one.measured,
                    failures: one.failures,
                    injected: one.injected,
                });
            }
            Some(sum) => {
                sum.measured.join(&one.measured);
                add_counts(&mut sum.failures, &one.failures);
                add_counts(&mut sum.injected, &one.injected);
            }
        }
    }
    let mut sum =
        sum.ok_or_else(|| "the load is too small: no client received a part of it".to_owned())?;
    sum.measured.clients = clients;
    Ok(sum)
}

fn add_counts(sum: &mut Vec<(String, u64)>, counts: &[(String, u64)]) {
    for (name, count) in counts {
        match sum.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += count,
            None => sum.push((name.clone(), *count)),
        }
    }
}

/// Sends each client a request.
pub fn send_to_all(
    clients: &[&ClientConnection],
    request: impl Fn(usize) -> CoordinatorMessage,
) -> Result<(), String> {
    for (index, client) in clients.iter().enumerate() {
        client
            .send(&request(index))
            .map_err(|why| format!("client {}: {why}", client.address))?;
    }
    Ok(())
}

/// Seconds that some clients have not reported yet.
struct PendingSeconds {
    /// The index of the first of `waiting`.
    next: u64,
    waiting: VecDeque<Vec<Option<SecondReport>>>,
    clients: usize,
}

impl PendingSeconds {
    fn new(clients: usize) -> PendingSeconds {
        PendingSeconds {
            next: 0,
            waiting: VecDeque::new(),
            clients,
        }
    }

    fn add(
        &mut self,
        client: usize,
        second: SecondReport,
        trial: &Trial,
        running: &mut RunningTrial<'_>,
    ) {
        // A second that was already shown or is too far ahead is ignored.
        let Some(place) = second.index.checked_sub(self.next).filter(|it| *it < 3600) else {
            return;
        };
        let place = place as usize;
        while self.waiting.len() <= place {
            self.waiting.push_back(vec![None; self.clients]);
        }
        self.waiting[place][client] = Some(second);
        while let Some(all) = self.waiting.front()
            && all.iter().all(Option::is_some)
        {
            let all = self.waiting.pop_front().expect("just seen");
            publish_second(self.next, all.into_iter().flatten(), trial, running);
            self.next += 1;
        }
    }
}

/// Shows a second of all clients.
fn publish_second(
    index: u64,
    all: impl Iterator<Item = SecondReport>,
    trial: &Trial,
    running: &mut RunningTrial<'_>,
) {
    let live = running.live;
    let mut measured: Option<Measurements> = None;
    let (mut failures, mut reads) = (Vec::new(), Some(ReadValidation::default()));
    let (mut now_ns, mut counts) = (0, true);
    for second in all {
        now_ns = second.now_ns.max(now_ns);
        counts &= second.counts;
        add_counts(&mut failures, &second.failures);
        // If one client does not validate online, the total is unknown.
        match (&mut reads, second.reads) {
            (Some(sum), Some(theirs)) => sum.add(theirs),
            (reads, _) => *reads = None,
        }
        match &mut measured {
            Some(sum) => sum.join(&second.measured),
            None => measured = Some(second.measured),
        }
    }
    let Some(measured) = measured else { return };
    let interval = Interval {
        index,
        measured,
        failures: Vec::new(),
    };
    live.add(&interval, counts);
    live.set_failures(&failures);
    if let Some(reads) = reads {
        live.set_validation(reads);
    }
    live.complete_second(now_ns, counts);
    if let Some(on_second) = running.on_second {
        on_second(live);
    }
    let elapsed = Duration::from_nanos(now_ns).saturating_sub(trial.warmup);
    if counts && live.with_state(|seen| (running.should_stop)(&seen.total, elapsed)) {
        live.stop();
    }
}
