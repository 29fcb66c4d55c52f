//! Mixes: the frequency of each action or session, by name or from a file.
//!
//! A mix file has a line for each action or session: its name and its percentage; `#` starts a comment. The percentages
//! add up to 100.
//!
//! ```text
//! # Mostly looking around.
//! view-profile   80
//! list-friends   19.9
//! invite-friend   0.1
//! ```
//!
//! A mix may also be inline, with commas instead of line ends: `view-profile 80, list-friends 20`.
//!
//! The report's mixes (its Table 3) accept and reject more than they invite, and thaw more than they accept, so
//! invitations and friendships run out. The symmetric mixes keep their numbers constant. In both, draws of impossible
//! actions are counted.

use std::fmt;
use std::path::Path;

use larder_types::Random;

use crate::model::action::Action;
use crate::model::session::Session;

/// The next activity of an emulated thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    Action(Action),
    Session(Session),
}

impl Activity {
    pub fn name(self) -> &'static str {
        match self {
            Activity::Action(action) => action.name(),
            Activity::Session(session) => session.name(),
        }
    }

    pub fn find(name: &str) -> Option<Activity> {
        let actions = Action::ALL.into_iter().map(Activity::Action);
        let sessions = Session::ALL.into_iter().map(Activity::Session);
        actions
            .chain(sessions)
            .find(|activity| activity.name() == name)
    }
}

/// Percentages, each positive, which add up to 100.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    name: String,
    parts: Vec<(Activity, f64)>,
}

/// The reason why a mix cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Neither a known name nor a readable file.
    Unknown {
        name: String,
        why: String,
    },
    Line {
        name: String,
        line: usize,
        why: String,
    },
    Sum {
        name: String,
        sum: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unknown { name, why } => {
                let known: Vec<&str> = NAMED.iter().map(|mix| mix.name).collect();
                write!(
                    out,
                    "--mix {name}: neither a named mix ({}) nor a readable file: {why}",
                    known.join(", ")
                )
            }
            Error::Line { name, line, why } => write!(out, "mix {name}, line {line}: {why}"),
            Error::Sum { name, sum } => {
                write!(
                    out,
                    "mix {name}: the percentages add up to {sum} instead of 100"
                )
            }
        }
    }
}

impl std::error::Error for Error {}

/// A mix that needs no file.
pub struct NamedMix {
    pub name: &'static str,
    pub about: &'static str,
    parts: &'static str,
}

pub const DEFAULT: &str = "symmetric-low-write";

/// In the order of `bg mixes`.
pub const NAMED: &[NamedMix] = &[
    NamedMix {
        name: "symmetric-very-low-write",
        about: "0.1 % writes that keep the number of friendships and invitations",
        parts: "view-profile 40\nlist-friends 5\nview-friend-requests 5\nview-top-resources 49.9\n\
            invite-friend .04\naccept-friend-request .02\nreject-friend-request .02\nthaw-friendship .02",
    },
    NamedMix {
        name: "symmetric-low-write",
        about: "1 % writes that keep the number of friendships and invitations",
        parts: "view-profile 40\nlist-friends 5\nview-friend-requests 5\nview-top-resources 49\n\
            invite-friend .4\naccept-friend-request .2\nreject-friend-request .2\nthaw-friendship .2",
    },
    NamedMix {
        name: "symmetric-high-write",
        about: "10 % writes that keep the number of friendships and invitations",
        parts: "view-profile 35\nlist-friends 5\nview-friend-requests 5\nview-top-resources 45\n\
            invite-friend 4\naccept-friend-request 2\nreject-friend-request 2\nthaw-friendship 2",
    },
    NamedMix {
        name: "very-low-write",
        about: "the mix of BG's report with 0.1 % writes",
        parts: "view-profile 40\nlist-friends 5\nview-friend-requests 5\nview-top-resources 49.9\n\
            invite-friend .02\naccept-friend-request .02\nreject-friend-request .03\nthaw-friendship .03",
    },
    NamedMix {
        name: "low-write",
        about: "the mix of BG's report with 1 % writes",
        parts: "view-profile 40\nlist-friends 5\nview-friend-requests 5\nview-top-resources 49\n\
            invite-friend .2\naccept-friend-request .2\nreject-friend-request .3\nthaw-friendship .3",
    },
    NamedMix {
        name: "high-write",
        about: "the mix of BG's report with 10 % writes",
        parts: "view-profile 35\nlist-friends 5\nview-friend-requests 5\nview-top-resources 45\n\
            invite-friend 2\naccept-friend-request 2\nreject-friend-request 3\nthaw-friendship 3",
    },
    NamedMix {
        name: "read-only",
        about: "no writes",
        parts: "view-profile 40\nlist-friends 5\nview-friend-requests 5\nview-top-resources 40\nview-comments 10",
    },
    NamedMix {
        name: "write-only",
        about: "creates and removes friendships",
        parts: "invite-friend 40\naccept-friend-request 20\nreject-friend-request 20\nthaw-friendship 20",
    },
    NamedMix {
        name: "comments",
        about: "10 % writes, including comments",
        parts: "view-profile 35\nlist-friends 5\nview-friend-requests 5\nview-top-resources 35\nview-comments 10\n\
            invite-friend 2\naccept-friend-request 1\nreject-friend-request 1\nthaw-friendship 1\n\
            post-comment 2.5\ndelete-comment 2.5",
    },
    NamedMix {
        name: "feeds",
        about: "posts, shares and reads of friends' posts; creates and removes friendships",
        parts: "view-feed 60\npost-to-feed 8\nshare 2\nview-profile 20\nlist-friends 5\n\
            invite-friend 2\naccept-friend-request 1\nreject-friend-request 1\nthaw-friendship 1",
    },
    NamedMix {
        name: "sessions",
        about: "all sessions of BG's report",
        parts: "view-self 30\nview-friend 40\ncomment-on-resource 5\ndelete-own-comment 5\n\
            invite 8\naccept 4\nreject 4\nthaw 4",
    },
];

impl Mix {
    /// Opens a named mix, an inline mix (see the module documentation), or otherwise a file.
    ///
    /// # Errors
    ///
    /// [`Error`]: the run must not start.
    pub fn open(name: &str) -> Result<Mix, Error> {
        if let Some(named) = NAMED.iter().find(|mix| mix.name == name) {
            return Mix::parse(name, named.parts);
        }
        if Mix::is_inline(name) {
            return Mix::parse(name, &name.replace(',', "\n"));
        }
        match std::fs::read_to_string(Path::new(name)) {
            Ok(text) => Mix::parse(name, &text),
            Err(why) => Err(Error::Unknown {
                name: name.to_owned(),
                why: why.to_string(),
            }),
        }
    }

    /// Returns whether the text is an inline mix, not a name: it begins with an action or a session and a percentage.
    pub fn is_inline(text: &str) -> bool {
        let first = text.split(',').next().unwrap_or_default();
        let mut words = first.split_whitespace();
        words.next().and_then(Activity::find).is_some() && words.next().is_some()
    }

    /// Parses a mix.
    ///
    /// # Errors
    ///
    /// [`Error::Line`] and [`Error::Sum`].
    pub fn parse(name: &str, text: &str) -> Result<Mix, Error> {
        let mut parts: Vec<(Activity, f64)> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let fail = |why: String| Error::Line {
                name: name.to_owned(),
                line: index + 1,
                why,
            };
            let mut words = line.split('#').next().unwrap_or("").split_whitespace();
            let Some(word) = words.next() else { continue };
            let activity = Activity::find(word)
                .ok_or_else(|| fail(format!("unknown action or session {word}")))?;
            let part = words
                .next()
                .ok_or_else(|| fail(format!("the percentage of {word} is missing")))?;
            let percent: f64 = part
                .trim_end_matches('%')
                .parse()
                .ok()
                .filter(|percent| (0.0..=100.0).contains(percent))
                .ok_or_else(|| fail(format!("{part} is not a percentage from 0 to 100")))?;
            if let Some(more) = words.next() {
                return Err(fail(format!("unexpected word {more} after the percentage")));
            }
            if parts.iter().any(|(other, _)| *other == activity) {
                return Err(fail(format!("duplicate entry for {word}")));
            }
            if percent > 0.0 {
                parts.push((activity, percent));
            }
        }
        let sum = parts.iter().fold(0.0, |sum, (_, percent)| sum + percent);
        if (sum - 100.0).abs() > 1e-6 {
            return Err(Error::Sum {
                name: name.to_owned(),
                sum: format!("{}", (sum * 1e6).round() / 1e6),
            });
        }
        Ok(Mix {
            name: name.to_owned(),
            parts,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn parts(&self) -> &[(Activity, f64)] {
        &self.parts
    }

    pub fn draw(&self, random: &mut Random) -> Activity {
        let mut left = random.unit() * 100.0;
        for (activity, percent) in &self.parts {
            left -= percent;
            if left < 0.0 {
                return *activity;
            }
        }
        self.parts[self.parts.len() - 1].0
    }

    /// Returns every action that a draw may lead to.
    pub fn actions(&self) -> impl Iterator<Item = Action> + '_ {
        Action::ALL.into_iter().filter(|action| {
            self.parts.iter().any(|(activity, _)| match activity {
                Activity::Action(other) => other == action,
                Activity::Session(session) => {
                    session.steps().iter().any(|step| step.action() == *action)
                }
            })
        })
    }
}
