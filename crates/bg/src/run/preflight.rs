//! Whether a data store holds the population, before the first trial: some members are looked at.
//!
//! A data store that was never loaded, was loaded with other options, or was left changed by a run that this process knows nothing of
//! would be found unpredictable; it is refused instead. A look that fails says nothing: the trial will measure it.

use larder_types::Random;
use tokio::time::timeout;

use super::Setup;
use crate::stores::contract::{Client, Profile};

/// Members looked at, drawn as the trial draws them: those whom an earlier run changed most likely.
const LOOKS: u32 = 64;

/// # Errors
///
/// The first member who is not as the population has them, and what to do.
pub(super) async fn check(client: &dyn Client, setup: &Setup) -> Result<(), String> {
    let mut random = Random::stream(setup.seed, u64::MAX);
    for _ in 0..LOOKS {
        let member = setup.drawing.draw(&mut random);
        let look = client.view_profile(member, member);
        let Ok(Ok(found)) = timeout(setup.conduct.timeout, look).await else {
            return Ok(());
        };
        compare(setup, member, &found)?;
    }
    Ok(())
}

fn compare(setup: &Setup, member: u32, found: &Profile) -> Result<(), String> {
    let population = &setup.population;
    let name = setup.store.name();
    let todo = "load it with the options of this run (bg load, or bg run --load)";
    if found.wrong > 0 {
        return Err(format!(
            "{name} does not hold this population: the profile of member {member} is not there or another; {todo}"
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
                "{name} is not as it was loaded: member {member} has {found} {what}, not {expected}; {todo}"
            ));
        }
    }
    Ok(())
}
