//! Messages on their way between the cores, in place of their queues.
//!
//! 1. A message arrives once, at its time at the earliest; time only goes forward.
//! 2. What one place sends another arrives in the order in which it was sent. Of messages of different places, or to
//!    different ones, either may come first.
//! 3. The same seed and the same calls give the same deliveries.
//! 4. Nothing arrives at a place that has left. What it sent before does.

use larder_sim::Random;

/// One that sends and receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub usize);

/// What has arrived.
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
    /// Whether another goes from the same place to the same place.
    fn is_on_way_of(&self, other: &Delivery<M>) -> bool {
        (self.delivery.from, self.delivery.to) == (other.from, other.to)
    }
}

/// Time, and all that is on its way.
pub struct Network<M> {
    random: Random,
    /// A message takes up to so long.
    delay_max: u64,
    now: u64,
    /// In the order in which it was sent.
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

    /// Time goes on by one.
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

    /// Loses what is on its way to a place, now and from now on.
    pub fn leave(&mut self, place: Place) {
        self.gone.push(place);
        self.on_way.retain(|sent| sent.delivery.to != place);
    }

    /// One of the messages whose time has come; `None` if there is none.
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

    /// Lets time pass until something arrives; says whether anything is on its way.
    pub fn wait(&mut self) -> bool {
        let first = self.on_way.iter().map(|sent| sent.at).min();
        self.now = self.now.max(first.unwrap_or(0));
        first.is_some()
    }

    /// Whether a message was sent before this one that must arrive before it.
    fn must_wait(&self, at: usize) -> bool {
        let own = &self.on_way[at].delivery;
        self.on_way[..at].iter().any(|sent| sent.is_on_way_of(own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: usize = 3;

    /// Sends numbers from everywhere to everywhere, some while others arrive; what arrived.
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
