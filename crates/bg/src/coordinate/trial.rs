//! One trial of all clients: ready, go, each second, done.
//!
//! Invariants:
//!
//! 1. No client receives go before all are ready.
//! 2. The state of a running trial consists of whole seconds of all clients.

use std::collections::VecDeque;
use std::time::Duration;

use super::hear::{Event, hear};
use super::protocol::{Done, Load as Part, Order, Second, Tell};
use super::{Connection, odd, share};
use crate::run::live::{Interval, Live, Tell as OnSecond};
use crate::verdict::measure::{Enough, Judged, Load, Measured, Trial};

/// The combined result of all clients.
pub struct Together {
    pub measured: Measured,
    pub failures: Vec<(String, u64)>,
    pub injected: Vec<(String, u64)>,
}

/// A trial that clients run. Each of them has received its order.
pub struct Running<'a> {
    pub clients: Vec<&'a Connection>,
    pub live: &'a Live,
    pub silence_max: Duration,
    pub on_second: &'a mut Option<OnSecond>,
    pub enough: Enough<'a>,
}

impl Running<'_> {
    /// Runs the trial.
    ///
    /// # Errors
    ///
    /// A client does not get ready, crashes, falls silent or fails. The message names the first one.
    pub fn run(mut self, trial: &Trial) -> Result<Together, String> {
        let count = self.clients.len();
        let mut ready = vec![false; count];
        let mut done: Vec<Option<Done>> = vec![None; count];
        let mut seconds = Seconds::of(count);
        let (mut threads, mut stopped) = (self.live.control().threads, false);
        let clients = std::mem::take(&mut self.clients);
        let all_ready = |ready: &[bool]| ready.iter().all(|ready| *ready);
        hear(&clients, self.silence_max, &mut |event| {
            match event {
                Event::Said(index, Tell::Ready) if !ready[index] => {
                    ready[index] = true;
                    if all_ready(&ready) {
                        tell(&clients, |_| Order::Go)?;
                    }
                }
                Event::Said(index, Tell::Second(second)) if all_ready(&ready) => {
                    seconds.add(index, *second, trial, &mut self);
                }
                Event::Said(index, Tell::Done(it)) if all_ready(&ready) => done[index] = Some(*it),
                Event::Said(index, other) => return Err(odd(clients[index], &other)),
                Event::Idle => {}
            }
            let control = self.live.control();
            if control.stop && !stopped && all_ready(&ready) {
                stopped = true;
                tell(&clients, |_| Order::Stop)?;
            } else if control.stop && !all_ready(&ready) {
                return Err("it was told to end before all clients were ready".to_owned());
            }
            if control.threads != threads && all_ready(&ready) {
                threads = control.threads;
                let masses: Vec<f64> = clients.iter().map(|client| client.mass).collect();
                let parts = share(Load::Threads(threads), &masses);
                tell(&clients, |index| match parts[index] {
                    Some(Part::Threads(threads)) => Order::Threads(threads),
                    _ => Order::Threads(0),
                })?;
            }
            Ok(())
        })?;
        together(done.into_iter().flatten())
    }
}

fn together(done: impl Iterator<Item = Done>) -> Result<Together, String> {
    let mut sum: Option<Together> = None;
    let mut clients = Vec::new();
    for one in done {
        // Without the series, which would be the largest part of a report.
        clients.push(Measured {
            series: Vec::new(),
            ..one.measured.clone()
        });
        match &mut sum {
            None => {
                sum = Some(Together {
                    measured: one.measured,
                    failures: one.failures,
                    injected: one.injected,
                });
            }
            Some(sum) => {
                sum.measured.join(&one.measured);
                add(&mut sum.failures, &one.failures);
                add(&mut sum.injected, &one.injected);
            }
        }
    }
    let mut sum = sum.ok_or_else(|| "no client has a part of so little load".to_owned())?;
    sum.measured.clients = clients;
    Ok(sum)
}

fn add(sum: &mut Vec<(String, u64)>, counts: &[(String, u64)]) {
    for (name, count) in counts {
        match sum.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += count,
            None => sum.push((name.clone(), *count)),
        }
    }
}

/// Sends each client an order.
pub fn tell(clients: &[&Connection], order: impl Fn(usize) -> Order) -> Result<(), String> {
    for (index, client) in clients.iter().enumerate() {
        client
            .send(&order(index))
            .map_err(|why| format!("client {}: {why}", client.address))?;
    }
    Ok(())
}

/// Seconds that some clients have not reported yet.
struct Seconds {
    /// The index of the first of `waiting`.
    next: u64,
    waiting: VecDeque<Vec<Option<Second>>>,
    clients: usize,
}

impl Seconds {
    fn of(clients: usize) -> Seconds {
        Seconds {
            next: 0,
            waiting: VecDeque::new(),
            clients,
        }
    }

    fn add(&mut self, client: usize, second: Second, trial: &Trial, running: &mut Running<'_>) {
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
            show(self.next, all.into_iter().flatten(), trial, running);
            self.next += 1;
        }
    }
}

/// Shows a second of all clients.
fn show(index: u64, all: impl Iterator<Item = Second>, trial: &Trial, running: &mut Running<'_>) {
    let live = running.live;
    let mut measured: Option<Measured> = None;
    let (mut failures, mut reads) = (Vec::new(), Some(Judged::default()));
    let (mut now_ns, mut counts) = (0, true);
    for second in all {
        now_ns = second.now_ns.max(now_ns);
        counts &= second.counts;
        add(&mut failures, &second.failures);
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
        live.judged(reads);
    }
    live.second_ended(now_ns, counts);
    if let Some(tell) = running.on_second {
        tell(live);
    }
    let elapsed = Duration::from_nanos(now_ns).saturating_sub(trial.warmup);
    if counts && live.seen(|seen| (running.enough)(&seen.total, elapsed)) {
        live.stop();
    }
}
