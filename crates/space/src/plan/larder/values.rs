//! The distribution of an attribute's values.

use super::super::workload::AttributeProfile;

/// The frequent values of an attribute, and equally frequent others.
pub(super) struct Values<'a> {
    pub profile: &'a AttributeProfile,
    /// The share of queries for one of the other values.
    pub queries: f64,
    /// The share of objects with a given one of the other values.
    pub objects: f64,
}

impl Values<'_> {
    pub(super) fn of(profile: &AttributeProfile, objects: u64) -> Values<'_> {
        let hot: f64 = profile.hot.iter().map(|it| it.objects).sum();
        let hot_queries: f64 = profile.hot.iter().map(|it| it.queries).sum();
        let others = profile.distinct.unwrap_or(objects).min(objects) as f64;
        let others = others - profile.hot.len() as f64;
        let (queries, objects) = if others > 0.0 {
            (1.0 - hot_queries, (1.0 - hot) / others)
        } else {
            (0.0, 0.0)
        };
        Values {
            profile,
            queries: queries.max(0.0),
            objects: objects.max(0.0),
        }
    }

    pub(super) fn mean(&self, number: impl Fn(f64) -> f64) -> f64 {
        let hot = self.profile.hot.iter();
        let hot: f64 = hot.map(|it| it.queries * number(it.objects)).sum();
        let hot_queries: f64 = self.profile.hot.iter().map(|it| it.queries).sum();
        let sum = hot + self.queries * number(self.objects);
        // All values are listed as frequent, and the shares of their queries do not add up to 1.
        let weight = hot_queries + self.queries;
        if weight > 0.0 {
            sum / weight
        } else {
            number(self.objects)
        }
    }

    /// Returns the mean share of objects with the requested value.
    pub(super) fn selectivity(&self) -> f64 {
        self.mean(|share| share)
    }

    /// Returns the mean number of cells of the requested value.
    pub(super) fn cells(&self, cells: f64) -> f64 {
        self.mean(|share| (share * cells).max(1.0))
    }
}
