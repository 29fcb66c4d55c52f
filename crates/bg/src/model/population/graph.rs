//! Arbitrary friendships: the lists of each member's friends, concatenated.

/// An undirected graph without loops and without parallel edges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    /// The start of each member's friends, followed by the end of the last list.
    starts: Vec<u64>,
    friends: Vec<u32>,
}

impl Graph {
    /// Creates a graph from edges in any order. Drops loops, and duplicates in either direction.
    ///
    /// # Panics
    ///
    /// An edge names a member that is not below `members`.
    pub fn new(members: u32, edges: &[(u32, u32)]) -> Graph {
        let mut starts = vec![0u64; members as usize + 2];
        for &(one, other) in edges.iter().filter(|(one, other)| one != other) {
            starts[one as usize + 2] += 1;
            starts[other as usize + 2] += 1;
        }
        for index in 1..starts.len() {
            starts[index] += starts[index - 1];
        }
        let mut friends = vec![0; starts[starts.len() - 1] as usize];
        for &(one, other) in edges.iter().filter(|(one, other)| one != other) {
            for (member, friend) in [(one, other), (other, one)] {
                let next = &mut starts[member as usize + 1];
                friends[*next as usize] = friend;
                *next += 1;
            }
        }
        starts.pop();
        let mut graph = Graph { starts, friends };
        graph.deduplicate();
        graph
    }

    pub fn members(&self) -> u32 {
        (self.starts.len() - 1) as u32
    }

    /// Returns the number of friendships, each counted once.
    pub fn friendships(&self) -> u64 {
        self.friends.len() as u64 / 2
    }

    /// Returns a member's friends, ascending.
    pub fn friends_of(&self, member: u32) -> &[u32] {
        &self.friends[self.range(member)]
    }

    fn range(&self, member: u32) -> std::ops::Range<usize> {
        self.starts[member as usize] as usize..self.starts[member as usize + 1] as usize
    }

    fn deduplicate(&mut self) {
        let mut kept = 0;
        let mut begin = 0;
        for member in 0..self.members() {
            let range = begin..self.starts[member as usize + 1] as usize;
            begin = range.end;
            self.friends[range.clone()].sort_unstable();
            self.starts[member as usize] = kept as u64;
            let mut last = None;
            for index in range {
                let friend = self.friends[index];
                if last != Some(friend) {
                    self.friends[kept] = friend;
                    kept += 1;
                    last = Some(friend);
                }
            }
        }
        let members = self.members() as usize;
        self.starts[members] = kept as u64;
        self.friends.truncate(kept);
        self.friends.shrink_to_fit();
    }
}
