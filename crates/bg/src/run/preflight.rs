//! Checks, before the first trial, that a data store holds the population, by reading some of its members.
//!
//! A data store may never have been loaded, may have been loaded with other options, or may have been changed by an
//! earlier run. Its reads would count as unpredictable, so it is rejected instead. A read that fails proves nothing and
//! is ignored: the trial will measure the failure.

use larder_types::Random;
use tokio::time::timeout;

use super::Setup;
use crate::stores::contract::{Client, Profile};

/// Number of members read. They are drawn as in the trial, so that members that an earlier run changed are the most
/// likely to be read.
const SAMPLE_SIZE: u32 = 64;

/// Compares a sample of the members with the population.
///
/// # Errors
///
/// A member differs from the population. The message names the first such member and the remedy.
pub(super) async fn check(client: &dyn Client, setup: &Setup) -> Result<(), String> {
    let mut random = Random::stream(setup.seed, u64::MAX);
    for _ in 0..SAMPLE_SIZE {
        let member = setup.drawing.draw(&mut random);
        let look = client.view_profile(member, member);
        let Ok(Ok(found)) = timeout(setup.run_options.timeout, look).await else {
            return Ok(());
        };
        compare(setup, member, &found)?;
    }
    Ok(())
}

fn compare(setup: &Setup, member: u32, found: &Profile) -> Result<(), String> {
    let population = &setup.population;
    let name = setup.store.name();
    let advice = "load it with the options of this run (bg load, or bg run --load)";
    if found.wrong > 0 {
        return Err(format!(
            "{name} does not contain this population: the profile of member {member} is missing or different; {advice}"
        ));
    }
    let friends = u64::from(population.friend_count(member));
    let invitations = population.inviters_of(member).count() as u64;
    let counts = [
        ("friends", found.friends, friends),
        ("invitations", found.invitations.unwrap_or(0), invitations),
        ("resources", found.resources, population.resources.into()),
    ];
    for (what, found, expected) in counts {
        if found != expected {
            return Err(format!(
                "{name} has changed since it was loaded: member {member} has {found} {what} instead of {expected}; {advice}"
            ));
        }
    }
    Ok(())
}
