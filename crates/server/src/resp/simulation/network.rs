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
pub struct Place(pub usize);

/// A message that has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery<M> {
    pub from: Place,
    pub to: Place,
    pub message: M,
}

struct OnWay<M> {
    at: u64,
    delivery: Delivery<M>,
}

impl<M> OnWay<M> {
    /// Returns whether the other message has the same sender and receiver.
    fn is_on_way_of(&self, other: &Delivery<M>) -> bool {
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
    on_way: Vec<OnWay<M>>,
    gone: Vec<Place>,
}

impl<M> Network<M> {
    pub fn new(seed: u64, delay_max: u64) -> Network<M> {
        Network {
            random: Random::stream(seed, 1),
            delay_max,
            now: 0,
            on_way: Vec::new(),
            gone: Vec::new(),
        }
    }

    pub fn now(&self) -> u64 {
        self.now
    }

    /// Advances the time by one tick.
    pub fn tick(&mut self) {
        self.now += 1;
    }

    pub fn send(&mut self, from: Place, to: Place, message: M) {
        if self.gone.contains(&to) {
            return;
        }
        let mut at = self.now + self.random.below(self.delay_max + 1);
        let delivery = Delivery { from, to, message };
        let before = self
            .on_way
            .iter()
            .rev()
            .find(|sent| sent.is_on_way_of(&delivery));
        if let Some(before) = before {
            at = at.max(before.at);
        }
        self.on_way.push(OnWay { at, delivery });
    }

    /// Drops the messages in transit to a place, and all later ones.
    pub fn leave(&mut self, place: Place) {
        self.gone.push(place);
        self.on_way.retain(|sent| sent.delivery.to != place);
    }

    /// Removes and returns one of the messages that are due; `None` if there is none.
    pub fn deliver(&mut self) -> Option<Delivery<M>> {
        let due: Vec<usize> = (0..self.on_way.len())
            .filter(|&at| self.on_way[at].at <= self.now && !self.must_wait(at))
            .collect();
        if due.is_empty() {
            return None;
        }
        let chosen = due[self.random.index(due.len())];
        Some(self.on_way.remove(chosen).delivery)
    }

    /// Advances the time to the next arrival. Returns whether any message is in transit.
    pub fn wait(&mut self) -> bool {
        let first = self.on_way.iter().map(|sent| sent.at).min();
        self.now = self.now.max(first.unwrap_or(0));
        first.is_some()
    }

    /// Returns whether an earlier message with the same sender and receiver must arrive first.
    fn must_wait(&self, at: usize) -> bool {
        let own = &self.on_way[at].delivery;
        self.on_way[..at].iter().any(|sent| sent.is_on_way_of(own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: usize = 3;

    /// Sends numbers between random places while others arrive, and returns the deliveries.
    fn arrived(seed: u64) -> Vec<Delivery<u64>> {
        let (mut network, mut random) = (Network::new(seed, 20), Random::stream(seed, 2));
        let mut all = Vec::new();
        for number in 0..200 {
            let (from, to) = (Place(random.index(PLACES)), Place(random.index(PLACES)));
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
    fn a_seed_gives_the_same_deliveries_again_and_another_gives_others() {
        assert_eq!(arrived(1), arrived(1));
        assert_eq!(arrived(1).len(), 200);
        assert_ne!(arrived(1), arrived(2));
    }

    #[test]
    fn between_two_places_the_order_is_kept_and_not_among_more() {
        let all = arrived(3);
        for (from, to) in (0..PLACES).flat_map(|from| (0..PLACES).map(move |to| (from, to))) {
            let way = (Place(from), Place(to));
            let of_way = all.iter().filter(|one| (one.from, one.to) == way);
            assert!(of_way.map(|one| one.message).is_sorted());
        }
        assert!(!all.iter().map(|one| one.message).is_sorted());
    }

    #[test]
    fn nothing_reaches_who_has_left_and_what_was_sent_before_arrives() {
        let mut network = Network::new(1, 20);
        network.send(Place(0), Place(1), "lost");
        network.send(Place(1), Place(0), "late");
        network.leave(Place(1));
        network.send(Place(2), Place(1), "never");
        assert!(network.wait());
        assert_eq!(network.deliver().expect("arrived").message, "late");
        assert!(!network.wait() && network.deliver().is_none());
    }
}
