//! D-Zipfian: divides the members among clients so that all clients together draw like one.
//!
//! Each client gets members whose popularity adds up to nearly its share of the work, taken alternately from both ends
//! of the ranks (the report, section 5). A client then draws among its own members in proportion. A fragment never
//! matches the intended share exactly. This is not an error if the client does the share of the work that its fragment
//! actually has: [`Fragment::mass`].

use super::Distribution;

/// The members of one client.
#[derive(Clone, Debug, PartialEq)]
pub struct Fragment {
    members: Vec<u32>,
    mass: f64,
    /// A bit for each member of the population.
    owned: Vec<u64>,
}

impl Fragment {
    /// Returns the members, ascending.
    pub fn members(&self) -> &[u32] {
        &self.members
    }

    /// Returns the share of all draws for these members, which is also the share of the work that this client should
    /// do.
    pub fn mass(&self) -> f64 {
        self.mass
    }

    pub fn owns(&self, member: u32) -> bool {
        self.owned[member as usize / 64] >> (member % 64) & 1 == 1
    }
}

/// Divides the members among clients with these speeds, in any unit. A client may get no member, if a single member
/// exceeds its share.
pub fn split(distribution: Distribution, members: u32, speeds: &[f64]) -> Vec<Fragment> {
    let exponent = distribution.exponent(members);
    let weights: Vec<f64> = (1..=members)
        .map(|rank| f64::from(rank).powf(-exponent))
        .collect();
    let total: f64 = weights.iter().sum();
    let all: f64 = speeds.iter().sum();
    let goals: Vec<f64> = speeds.iter().map(|speed| total * speed / all).collect();
    let mut clients: Vec<(Vec<u32>, f64)> = vec![(Vec::new(), 0.0); speeds.len()];
    let last = speeds.len() - 1;
    let mut complete = vec![false; speeds.len()];
    let (mut head, mut tail, mut client) = (0, members as usize, last);
    while head < tail {
        let goal = goals[client];
        let (own, mass) = &mut clients[client];
        if *mass + weights[head] <= goal {
            own.push(head as u32);
            *mass += weights[head];
            head += 1;
        } else if *mass + weights[tail - 1] <= goal
            || client == last && complete[..last].iter().all(|it| *it)
        {
            tail -= 1;
            own.push(tail as u32);
            *mass += weights[tail];
        } else if client != last {
            complete[client] = true;
        }
        client = (1..=speeds.len())
            .map(|step| (client + speeds.len() - step) % speeds.len())
            .find(|other| !complete[*other])
            .expect("the last is never complete");
    }
    clients
        .into_iter()
        .map(|(ranks, mass)| {
            let mut own: Vec<u32> = ranks
                .into_iter()
                .map(|rank| distribution.member_of_rank(members, rank))
                .collect();
            own.sort_unstable();
            let mut owned = vec![0u64; (members as usize).div_ceil(64)];
            for member in &own {
                owned[*member as usize / 64] |= 1 << (member % 64);
            }
            Fragment {
                members: own,
                mass: mass / total,
                owned,
            }
        })
        .collect()
}
