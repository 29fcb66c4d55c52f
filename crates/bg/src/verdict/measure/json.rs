//! The JSON format of results: times in seconds, histograms as the values that occurred, actions by name.

pub(super) mod seconds {
    use std::time::Duration;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.as_secs_f64())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(from)?).map_err(D::Error::custom)
    }
}

pub(super) mod some_seconds {
    use std::time::Duration;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        time.map(|time| time.as_secs_f64()).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        let seconds = Option::<f64>::deserialize(from)?;
        let time = seconds.map(Duration::try_from_secs_f64).transpose();
        time.map_err(D::Error::custom)
    }
}

/// Pairs of a value and its number of occurrences. A value is the lowest of those in its histogram bucket.
pub(super) mod histogram {
    use hdrhistogram::Histogram;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Spelled {
        digits: u8,
        values: Vec<(u64, u64)>,
    }

    pub fn serialize<S: Serializer>(histogram: &Histogram<u64>, to: S) -> Result<S::Ok, S::Error> {
        let values = histogram
            .iter_recorded()
            .map(|step| {
                let value = histogram.lowest_equivalent(step.value_iterated_to());
                (value, step.count_at_value())
            })
            .collect();
        Spelled {
            digits: histogram.sigfig(),
            values,
        }
        .serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Histogram<u64>, D::Error> {
        let spelled = Spelled::deserialize(from)?;
        let mut histogram = Histogram::new(spelled.digits).map_err(D::Error::custom)?;
        for (value, count) in spelled.values {
            histogram.record_n(value, count).map_err(D::Error::custom)?;
        }
        Ok(histogram)
    }
}

/// An object with the actions that were drawn.
pub(super) mod by_action {
    use std::collections::BTreeMap;

    use serde::de::Error;
    use serde::ser::SerializeMap;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::model::action::Action;
    use crate::verdict::measure::{ActionMeasurements, DeliveredMix};

    /// Adds the proportions that readers of the JSON would otherwise have to compute.
    #[derive(Serialize)]
    struct Spelled<'a> {
        #[serde(flatten)]
        measured: &'a ActionMeasurements,
        delivered_percent: f64,
        drawn_percent: f64,
    }

    pub fn serialize<S: Serializer>(
        actions: &[ActionMeasurements],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let delivered = DeliveredMix::new(actions);
        let mut map = to.serialize_map(None)?;
        for (action, measured) in Action::ALL.iter().zip(actions) {
            if measured.calls() > 0 || measured.skipped > 0 {
                let spelled = Spelled {
                    measured,
                    delivered_percent: 100.0 * delivered.share(*action),
                    drawn_percent: 100.0 * delivered.share_drawn(*action),
                };
                map.serialize_entry(action.name(), &spelled)?;
            }
        }
        map.end()
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<ActionMeasurements>, D::Error> {
        let mut spelled = BTreeMap::<String, ActionMeasurements>::deserialize(from)?;
        let actions = Action::ALL
            .iter()
            .map(|action| spelled.remove(action.name()).unwrap_or_default())
            .collect();
        match spelled.keys().next() {
            Some(name) => Err(D::Error::custom(format!("unknown action `{name}`"))),
            None => Ok(actions),
        }
    }
}
