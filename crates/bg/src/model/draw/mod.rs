//! Draws the members that act or are viewed: uniformly, by Zipf's law, or the most recent ones most often; among all
//! members or those of one client.
//!
//! Member 0 is the most popular one by Zipf's law, and the last member by *latest*. Several clients divide the members
//! by D-Zipfian (`fragment`), so that together they draw like one client.
//!
//! ```text
//!   Distribution ──► Zipf (rejection-inversion, any number of members)      one client
//!               └──► fragment::split ──► Alias (its own members)            several
//! ```
//!
//! `cells` counts the draws in `draw_counts`, so that a run can report the deviation from the intended distribution.

mod alias;
mod cells;
mod draw_counts;
pub mod fragment;
mod zipf;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use larder_types::Random;

pub(crate) use alias::Alias;
pub use cells::Cells;
pub use draw_counts::{Cell, ChiSquare, DrawCounts, Share};
use fragment::Fragment;
use zipf::Zipf;
pub use zipf::{exponent_for, mass_of_top};

/// The popularity of members. The member of rank `i`, counted from 1, is drawn in proportion to `i` to the power of
/// minus the exponent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    Uniform,
    /// Members with lower numbers are more popular.
    Zipf(Skew),
    /// Members with higher numbers are more popular.
    Latest(Skew),
}

/// Three ways to specify an exponent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Skew {
    /// BG's `zipfianmean`: the exponent is 1 minus theta.
    Theta(f64),
    Exponent(f64),
    /// This share of the draws goes to this share of the members; both are between 0 and 1.
    Share {
        draws: f64,
        members: f64,
    },
}

/// The report's theta.
pub const DEFAULT: Distribution = Distribution::Zipf(Skew::Theta(0.27));

impl Skew {
    pub fn exponent(self, members: u32) -> f64 {
        match self {
            Skew::Theta(theta) => 1.0 - theta,
            Skew::Exponent(exponent) => exponent,
            Skew::Share { draws, members: of } => exponent_for(members, of, draws),
        }
    }
}

impl Distribution {
    pub fn exponent(self, members: u32) -> f64 {
        match self {
            Distribution::Uniform => 0.0,
            Distribution::Zipf(skew) | Distribution::Latest(skew) => skew.exponent(members),
        }
    }

    /// Converts a rank, from 0 for the most popular, to the member, and vice versa.
    pub fn member_of_rank(self, members: u32, rank: u32) -> u32 {
        match self {
            Distribution::Latest(_) => members - 1 - rank,
            Distribution::Uniform | Distribution::Zipf(_) => rank,
        }
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, skew) = match self {
            Distribution::Uniform => return write!(out, "uniform"),
            Distribution::Zipf(skew) => ("zipf", skew),
            Distribution::Latest(skew) => ("latest", skew),
        };
        match skew {
            Skew::Theta(theta) => write!(out, "{name}:theta={theta}"),
            Skew::Exponent(exponent) => write!(out, "{name}:exponent={exponent}"),
            Skew::Share { draws, members } => {
                write!(out, "{name}:{}/{}", draws * 100.0, members * 100.0)
            }
        }
    }
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Distribution, String> {
        let fail = |why: &str| {
            Err(format!(
                "{text}: {why}; the distributions are uniform, zipf and latest; zipf and latest accept a skew such as :theta=0.27, :exponent=0.73 or :80/20"
            ))
        };
        let (name, skew) = text.split_once(':').unwrap_or((text, "theta=0.27"));
        let number = |text: &str| text.parse::<f64>().ok().filter(|it| it.is_finite());
        let skew = if let Some(theta) = skew.strip_prefix("theta=") {
            number(theta).map(Skew::Theta)
        } else if let Some(exponent) = skew.strip_prefix("exponent=") {
            number(exponent).map(Skew::Exponent)
        } else {
            skew.split_once('/').and_then(|(draws, members)| {
                let (draws, members) = (number(draws)? / 100.0, number(members)? / 100.0);
                let is_valid = 0.0 < members && members <= draws && draws < 1.0;
                is_valid.then_some(Skew::Share { draws, members })
            })
        };
        let Some(skew) = skew else {
            return fail("the skew is invalid");
        };
        if !(0.0..=20.0).contains(&skew.exponent(1000)) {
            return fail("the exponent must be 0 to 20");
        }
        match name {
            "uniform" if text == name => Ok(Distribution::Uniform),
            "zipf" => Ok(Distribution::Zipf(skew)),
            "latest" => Ok(Distribution::Latest(skew)),
            _ => fail("the distribution is unknown"),
        }
    }
}

/// Draws members. Shared by all workers.
#[derive(Clone, Debug)]
pub struct Drawing {
    members: u32,
    distribution: Distribution,
    rank: Rank,
    fragment: Option<Arc<Fragment>>,
}

#[derive(Clone, Debug)]
enum Rank {
    Uniform,
    Zipf(Zipf),
    /// Indexes the members of the fragment.
    Alias(Arc<Alias>),
}

impl Drawing {
    /// Draws among all members.
    pub fn for_all_members(distribution: Distribution, members: u32) -> Drawing {
        let exponent = distribution.exponent(members);
        Drawing {
            members,
            distribution,
            rank: match exponent {
                0.0 => Rank::Uniform,
                _ => Rank::Zipf(Zipf::new(members, exponent)),
            },
            fragment: None,
        }
    }

    /// Returns the distribution over all members.
    pub fn distribution(&self) -> Distribution {
        self.distribution
    }

    /// Draws among one client's members, with the relative frequencies of the complete distribution.
    pub fn for_fragment(
        distribution: Distribution,
        members: u32,
        fragment: Arc<Fragment>,
    ) -> Drawing {
        let exponent = distribution.exponent(members);
        let weights: Vec<f64> = fragment
            .members()
            .iter()
            .map(|member| {
                let rank = distribution.member_of_rank(members, *member);
                (f64::from(rank) + 1.0).powf(-exponent)
            })
            .collect();
        Drawing {
            members,
            distribution,
            rank: Rank::Alias(Arc::new(Alias::new(&weights))),
            fragment: Some(fragment),
        }
    }

    pub fn draw(&self, random: &mut Random) -> u32 {
        match (&self.rank, &self.fragment) {
            (Rank::Alias(alias), Some(fragment)) => fragment.members()[alias.draw(random)],
            (Rank::Zipf(zipf), _) => self
                .distribution
                .member_of_rank(self.members, zipf.draw(random) - 1),
            _ => random.below(self.members.into()) as u32,
        }
    }

    /// Draws any of the client's members uniformly.
    pub fn draw_uniform(&self, random: &mut Random) -> u32 {
        match &self.fragment {
            Some(fragment) => fragment.members()[random.index(fragment.members().len())],
            None => random.below(self.members.into()) as u32,
        }
    }

    /// Returns whether a member belongs to this client, so that its relations may be changed here.
    pub fn owns(&self, member: u32) -> bool {
        self.fragment
            .as_ref()
            .is_none_or(|fragment| fragment.owns(member))
    }

    /// Returns the number of members that can be drawn.
    pub fn size(&self) -> u32 {
        self.fragment
            .as_ref()
            .map_or(self.members, |fragment| fragment.members().len() as u32)
    }
}
