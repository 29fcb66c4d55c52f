//! Compares the delivered mix with the drawn mix.
//!
//! A draw that cannot be carried out (no invitation to accept, no friend to thaw) is skipped, so the proportions of the
//! actions that the data store receives may differ from the mix. The *drift* is the proportion of delivered actions
//! that would have to be different ones to match the drawn proportions: half the sum of the absolute differences. Drift
//! is not a random error: both sides are counts of the same trial.

use super::{ActionMeasurements, Measurements};
use crate::model::action::Action;

/// The counts of a trial by action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveredMix {
    calls: [u64; Action::COUNT],
    skipped: [u64; Action::COUNT],
}

impl DeliveredMix {
    /// Drift, 0 to 1, above which results are not comparable with those of other runs.
    pub const DRIFT_MAX: f64 = 0.01;

    /// Returns the counts of actions in the order of [`Action::ALL`].
    pub fn new(actions: &[ActionMeasurements]) -> DeliveredMix {
        let mut delivered = DeliveredMix {
            calls: [0; Action::COUNT],
            skipped: [0; Action::COUNT],
        };
        for (index, action) in actions.iter().enumerate() {
            delivered.calls[index] = action.calls();
            delivered.skipped[index] = action.skipped;
        }
        delivered
    }

    /// Returns the action's proportion of the delivered actions, 0 to 1.
    pub fn share(&self, action: Action) -> f64 {
        self.calls[action as usize] as f64 / self.delivered().max(1) as f64
    }

    /// Returns the action's proportion of the drawn actions, 0 to 1.
    pub fn share_drawn(&self, action: Action) -> f64 {
        let index = action as usize;
        (self.calls[index] + self.skipped[index]) as f64 / self.drawn().max(1) as f64
    }

    /// Returns the proportion of writes in the delivered actions, 0 to 1.
    pub fn writes(&self) -> f64 {
        let writes = Action::ALL.into_iter().filter(|action| action.is_write());
        writes.map(|action| self.share(action)).sum()
    }

    /// Returns the proportion of writes in the drawn actions, 0 to 1.
    pub fn writes_drawn(&self) -> f64 {
        let writes = Action::ALL.into_iter().filter(|action| action.is_write());
        writes.map(|action| self.share_drawn(action)).sum()
    }

    /// Returns the distance between the delivered mix and the drawn mix, 0 to 1.
    pub fn drift(&self) -> f64 {
        let apart = |action| (self.share(action) - self.share_drawn(action)).abs();
        match self.drawn() {
            0 => 0.0,
            _ => Action::ALL.into_iter().map(apart).sum::<f64>() / 2.0,
        }
    }

    /// Returns the number of calls to the data store.
    pub fn delivered(&self) -> u64 {
        self.calls.iter().sum()
    }

    fn drawn(&self) -> u64 {
        self.delivered() + self.skipped.iter().sum::<u64>()
    }

    /// Returns the proportions as a sentence. None if nothing was drawn.
    pub fn summary(&self) -> Option<String> {
        (self.drawn() > 0).then(|| {
            format!(
                "mix delivered: {:.2} % writes (drawn {:.2} %); drift {:.2} %",
                100.0 * self.writes(),
                100.0 * self.writes_drawn(),
                100.0 * self.drift()
            )
        })
    }

    /// Returns a warning if the drift exceeds [`DeliveredMix::DRIFT_MAX`].
    pub fn warning(&self) -> Option<String> {
        let skipped: u64 = self.skipped.iter().sum();
        (self.drift() > DeliveredMix::DRIFT_MAX).then(|| {
            format!(
                "the delivered mix drifted by {:.2} % from the drawn one, because {skipped} of {} draws could not be carried out: the results are not comparable with \
                 those of runs without drift; use a symmetric mix, more --invitations, more --members, or --tries",
                100.0 * self.drift(),
                self.drawn()
            )
        })
    }
}

impl Measurements {
    pub fn delivered(&self) -> DeliveredMix {
        DeliveredMix::new(&self.actions)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn measured(calls: &[(Action, u64, u64)]) -> DeliveredMix {
        let mut measured = Measurements::new(Duration::from_secs(1));
        for (action, calls, skipped) in calls {
            let one = &mut measured.actions[*action as usize];
            (0..*calls).for_each(|_| one.record(1000, None));
            one.skipped = *skipped;
        }
        measured.delivered()
    }

    #[test]
    fn skipped_draws_cause_drift() {
        let all = measured(&[
            (Action::ViewProfile, 90, 0),
            (Action::AcceptFriendRequest, 10, 0),
        ]);
        assert_eq!((all.drift(), all.warning()), (0.0, None));
        assert_eq!(
            all.summary().unwrap(),
            "mix delivered: 10.00 % writes (drawn 10.00 %); drift 0.00 %"
        );
        let none = measured(&[
            (Action::ViewProfile, 90, 0),
            (Action::AcceptFriendRequest, 0, 10),
        ]);
        assert!((none.drift() - 0.1).abs() < 1e-12);
        assert!(none.warning().unwrap().contains("10 of 100 draws"));
        assert_eq!(measured(&[]).summary(), None);
    }

    #[test]
    fn proportionally_skipped_draws_cause_no_drift() {
        let alike = measured(&[(Action::ViewProfile, 45, 45), (Action::InviteFriend, 5, 5)]);
        assert!(alike.drift() < 1e-12);
    }
}
