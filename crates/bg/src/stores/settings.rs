//! `--set name=value`: the settings of a data store.

use std::time::Duration;

use super::Options;
use crate::model::duration::parse_duration;

/// Takes settings one by one, and rejects those that were not taken.
pub struct Settings<'a> {
    remaining: Vec<&'a (String, String)>,
}

impl<'a> Settings<'a> {
    pub fn new(options: &'a Options) -> Settings<'a> {
        Settings {
            remaining: options.settings.iter().collect(),
        }
    }

    /// Returns the last given value, if any.
    pub fn text(&mut self, name: &str) -> Option<&'a str> {
        let value = self
            .remaining
            .iter()
            .rev()
            .find(|(given, _)| given == name)
            .map(|(_, value)| value.as_str());
        self.remaining.retain(|(given, _)| given != name);
        value
    }

    /// Returns one of `choices`; the first one by default.
    ///
    /// # Errors
    ///
    /// The possible choices.
    pub fn choice<T: Copy>(&mut self, name: &str, choices: &[(&str, T)]) -> Result<T, String> {
        let Some(value) = self.text(name) else {
            return Ok(choices[0].1);
        };
        let found = choices.iter().find(|(spelling, _)| *spelling == value);
        found.map(|(_, choice)| *choice).ok_or_else(|| {
            let spellings: Vec<&str> = choices.iter().map(|(spelling, _)| *spelling).collect();
            format!("--set {name}={value}: must be {}", spellings.join(" or "))
        })
    }

    /// Returns a duration.
    ///
    /// # Errors
    ///
    /// The notation of a duration.
    pub fn duration(&mut self, name: &str, default: Duration) -> Result<Duration, String> {
        match self.text(name) {
            None => Ok(default),
            Some(value) => {
                parse_duration(value).map_err(|why| format!("--set {name}={value}: {why}"))
            }
        }
    }

    /// Checks that all settings were taken.
    ///
    /// # Errors
    ///
    /// The name of an unknown setting.
    pub fn finish(self, store: &str) -> Result<(), String> {
        match self.remaining.first() {
            None => Ok(()),
            Some((name, _)) => Err(format!("--set {name}: {store} has no such setting")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(settings: &[(&str, &str)]) -> Options {
        let settings = settings.iter();
        Options {
            settings: settings
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            ..Options::default()
        }
    }

    #[test]
    fn a_setting_outside_its_choices_is_rejected_by_name() {
        let choices = [("small", 1), ("large", 2)];
        let given = options(&[("size", "small"), ("size", "large"), ("colour", "red")]);
        let mut settings = Settings::new(&given);
        assert_eq!(settings.choice("size", &choices), Ok(2));
        assert_eq!(settings.choice("depth", &choices), Ok(1));
        assert_eq!(
            settings.finish("a box"),
            Err("--set colour: a box has no such setting".to_owned())
        );
        let given = options(&[("size", "huge"), ("long", "2s"), ("short", "3")]);
        assert_eq!(
            Settings::new(&given).choice("size", &choices),
            Err("--set size=huge: must be small or large".to_owned())
        );
        let second = Duration::from_secs(1);
        let mut settings = Settings::new(&given);
        assert_eq!(settings.duration("long", second), Ok(2 * second));
        assert_eq!(settings.duration("absent", second), Ok(second));
        assert!(settings.duration("short", second).is_err());
    }
}
