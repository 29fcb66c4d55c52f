//! The minimum and the maximum value at each event, and a tree over them that finds events by value.

use std::ops::Range;

/// Both bounds are inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub lo: i64,
    pub hi: i64,
}

impl Extent {
    pub const ANY: Extent = Extent {
        lo: i64::MIN,
        hi: i64::MAX,
    };
    const NONE: Extent = Extent {
        lo: i64::MAX,
        hi: i64::MIN,
    };

    pub fn one(value: i64) -> Extent {
        Extent {
            lo: value,
            hi: value,
        }
    }

    pub fn holds(self, value: i64) -> bool {
        self.lo <= value && value <= self.hi
    }

    pub fn and(self, other: Extent) -> Extent {
        Extent {
            lo: self.lo.min(other.lo),
            hi: self.hi.max(other.hi),
        }
    }
}

/// A complete binary tree in an array: node `i` covers the leaves of `2 i` and `2 i + 1`; leaf `i` is node
/// `leaves + i`.
pub struct ExtentTree {
    nodes: Vec<Extent>,
    leaves: usize,
}

impl ExtentTree {
    pub fn new(extents: Vec<Extent>) -> ExtentTree {
        let leaves = extents.len().next_power_of_two();
        let mut nodes = vec![Extent::NONE; leaves * 2];
        nodes[leaves..leaves + extents.len()].copy_from_slice(&extents);
        for node in (1..leaves).rev() {
            nodes[node] = nodes[node * 2].and(nodes[node * 2 + 1]);
        }
        ExtentTree { nodes, leaves }
    }

    /// Returns the combined extent of a range of leaves.
    pub fn over(&self, range: Range<usize>) -> Extent {
        let (mut left, mut right) = (self.leaves + range.start, self.leaves + range.end);
        let mut extent = Extent::NONE;
        while left < right {
            if left % 2 == 1 {
                extent = extent.and(self.nodes[left]);
                left += 1;
            }
            if right % 2 == 1 {
                right -= 1;
                extent = extent.and(self.nodes[right]);
            }
            left /= 2;
            right /= 2;
        }
        extent
    }

    /// Returns the first leaf in a range that contains the value and for which `decide` returns true.
    pub fn first_containing(
        &self,
        range: Range<usize>,
        value: i64,
        mut decide: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        self.search(1, 0..self.leaves, &range, value, [0, 1], &mut decide)
    }

    /// Returns the last leaf in a range that contains the value and for which `decide` returns true.
    pub fn last_containing(
        &self,
        range: Range<usize>,
        value: i64,
        mut decide: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        self.search(1, 0..self.leaves, &range, value, [1, 0], &mut decide)
    }

    fn search(
        &self,
        node: usize,
        covers: Range<usize>,
        range: &Range<usize>,
        value: i64,
        order: [usize; 2],
        decide: &mut dyn FnMut(usize) -> bool,
    ) -> Option<usize> {
        if covers.end <= range.start || range.end <= covers.start || !self.nodes[node].holds(value)
        {
            return None;
        }
        if node >= self.leaves {
            return decide(covers.start).then_some(covers.start);
        }
        let middle = covers.start.midpoint(covers.end);
        let halves = [covers.start..middle, middle..covers.end];
        order.into_iter().find_map(|half| {
            self.search(
                node * 2 + half,
                halves[half].clone(),
                range,
                value,
                order,
                decide,
            )
        })
    }
}
