//! Messages in transit between the cores, in place of their queues.
//!
//! 1. A message arrives once, and not before its time; time never goes backwards.
//! 2. Messages from one place to another arrive in the order in which they were sent. Messages of different places, or
//!    to different places, may arrive in any order.
//! 3. The same seed and the same calls produce the same deliveries.
//! 4. No message arrives at a place that has left. The messages that it sent before do arrive.

use larder_sim::Random;

/// A sender and receiver of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint(pub usize);

/// A message that has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery<M> {
    pub from: Endpoint,
    pub to: Endpoint,
    pub message: M,
}

struct InTransit<M> {
    at: u64,
    delivery: Delivery<M>,
}

impl<M> InTransit<M> {
    /// Returns whether the other message has the same sender and receiver.
    fn has_endpoints_of(&self, other: &Delivery<M>) -> bool {
        (self.delivery.from, self.delivery.to) == (other.from, other.to)
    }
}

/// The time, and all messages in transit.
pub struct Network<M> {
    random: Random,
    /// Maximum delay of a message, in ticks.
    delay_max: u64,
    now: u64,
    /// In the order in which they were sent.
    in_transit: Vec<InTransit<M>>,
    left: Vec<Endpoint>,
}

impl<M> Network<M> {
    pub fn new(seed: u64, delay_max: u64) -> Network<M> {
        Network {
            random: Random::stream(seed, 1),
            delay_max,
            now: 0,
            in_transit: Vec::new(),
            left: Vec::new(),
        }
    }

    pub fn now(&self) -> u64 {
        self.now
    }

    /// Advances the time by one tick.
    pub fn tick(&mut self) {
        self.now += 1;
    }

    pub fn send(&mut self, from: Endpoint, to: Endpoint, message: M) {
        if self.left.contains(&to) {
            return;
        }
        let mut at = self.now + self.random.below(self.delay_max + 1);
        let delivery = Delivery { from, to, message };
        let before = self
            .in_transit
            .iter()
            .rev()
            .find(|sent| sent.has_endpoints_of(&delivery));
        if let Some(before) = before {
            at = at.max(before.at);
        }
        self.in_transit.push(InTransit { at, delivery });
    }

    /// Drops the messages in transit to a place, and all later ones.
    pub fn leave(&mut self, endpoint: Endpoint) {
        self.left.push(endpoint);
        self.in_transit.retain(|sent| sent.delivery.to != endpoint);
    }

    /// Removes and returns one of the messages that are due; `None` if there is none.
    pub fn deliver(&mut self) -> Option<Delivery<M>> {
        let due: Vec<usize> = (0..self.in_transit.len())
            .filter(|&at| self.in_transit[at].at <= self.now && !self.must_wait(at))
            .collect();
        if due.is_empty() {
            return None;
        }
        let chosen = due[self.random.index(due.len())];
        Some(self.in_transit.remove(chosen).delivery)
    }

    /// Advances the time to the next arrival. Returns whether any message is in transit.
    pub fn wait(&mut self) -> bool {
        let first = self.in_transit.iter().map(|sent| sent.at).min();
        self.now = self.now.max(first.unwrap_or(0));
        first.is_some()
    }

    /// Returns whether an earlier message with the same sender and receiver must arrive first.
    fn must_wait(&self, at: usize) -> bool {
        let own = &self.in_transit[at].delivery;
        self.in_transit[..at]
            .iter()
            .any(|sent| sent.has_endpoints_of(own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINTS: usize = 3;

    /// Sends numbers between random places while others arrive, and returns the deliveries.
    fn run_deliveries(seed: u64) -> Vec<Delivery<u64>> {
        let (mut network, mut random) = (Network::new(seed, 20), Random::stream(seed, 2));
        let mut all = Vec::new();
        for number in 0..200 {
            let (from, to) = (
                Endpoint(random.index(ENDPOINTS)),
                Endpoint(random.index(ENDPOINTS)),
            );
            network.send(from, to, number);
            network.tick();
            all.extend(network.deliver());
        }
        while network.wait() {
            all.extend(network.deliver());
        }
        all
    }

    #[test]
    fn a_seed_determines_the_deliveries() {
        assert_eq!(run_deliveries(1), run_deliveries(1));
        assert_eq!(run_deliveries(1).len(), 200);
        assert_ne!(run_deliveries(1), run_deliveries(2));
    }

    #[test]
    fn messages_between_two_endpoints_stay_in_order() {
        let all = run_deliveries(3);
        for (from, to) in (0..ENDPOINTS).flat_map(|from| (0..ENDPOINTS).map(move |to| (from, to))) {
            let pair = (Endpoint(from), Endpoint(to));
            let of_pair = all.iter().filter(|one| (one.from, one.to) == pair);
            assert!(of_pair.map(|one| one.message).is_sorted());
        }
        assert!(!all.iter().map(|one| one.message).is_sorted());
    }

    #[test]
    fn an_endpoint_that_left_receives_nothing_and_its_sent_messages_arrive() {
        let mut network = Network::new(1, 20);
        network.send(Endpoint(0), Endpoint(1), "lost");
        network.send(Endpoint(1), Endpoint(0), "late");
        network.leave(Endpoint(1));
        network.send(Endpoint(2), Endpoint(1), "never");
        assert!(network.wait());
        assert_eq!(network.deliver().expect("arrived").message, "late");
        assert!(!network.wait() && network.deliver().is_none());
    }
}
