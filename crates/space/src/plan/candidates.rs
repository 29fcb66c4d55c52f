//! The candidate layouts of the configurator.
//!
//! Attribute lists: all lists of the attributes that queries constrain, if there are few attributes; otherwise short
//! lists, and the lists of the queries. Bits: all allocations, if there are few; otherwise an even one, whose
//! neighbours the search examines later.

use super::configuration::{AttributeSet, Layout};
use super::larder::LarderModel;

/// The maximum number of searched attributes for which all lists are candidates.
const ATTRIBUTES_ALL: u32 = 12;

/// The maximum number of layouts for which all allocations of bits are candidates.
const LAYOUTS_ALL: usize = 3000;

/// Returns the initial layouts.
pub(super) fn layouts(model: &LarderModel<'_>) -> Vec<Layout> {
    let lists = lists(model);
    let mut all: Vec<Layout> = Vec::new();
    for &list in &lists {
        let ranked = ranked(model, list);
        allocations(model, &ranked, &mut all);
        if all.len() > LAYOUTS_ALL {
            return lists.iter().filter_map(|&it| even(model, it)).collect();
        }
    }
    all
}

/// Returns the layout of an attribute list with evenly shared bits. The attributes that most queries fix are outermost.
/// `None` if the list has more attributes than there are bits.
pub(super) fn even(model: &LarderModel<'_>, list: AttributeSet) -> Option<Layout> {
    let ranked = ranked(model, list);
    let requested = vec![None; ranked.len()];
    let values = |at: usize| model.workload.attributes[usize::from(ranked[at])].distinct;
    let bits = crate::mapping::allocate_bits(model.deployment.regions, &requested, values);
    let bits = bits.expect("the deployment is checked");
    let dimensions: Vec<(u8, u8)> = ranked.iter().copied().zip(bits).collect();
    let is_cut = |it: &(u8, u8)| it.1 > 0;
    (!dimensions.is_empty() && dimensions.iter().all(is_cut)).then_some(Layout { dimensions })
}

fn lists(model: &LarderModel<'_>) -> Vec<AttributeSet> {
    let searched: Vec<usize> = model.searched().iter().collect();
    let count = searched.len() as u32;
    let longest = match count {
        0..=ATTRIBUTES_ALL => count,
        13..=24 => 3,
        _ => 2,
    };
    let longest = longest.min(model.deployment.regions.ilog2());
    let mut lists = Vec::new();
    let mut list = Vec::new();
    combine(&searched, longest as usize, &mut list, &mut lists);
    for query in 0..model.workload.queries.len() {
        let of = model.query_attributes(query);
        if !of.is_empty() && !lists.contains(&of) {
            lists.push(of);
        }
    }
    lists
}

pub(super) fn combine(
    from: &[usize],
    longest: usize,
    list: &mut Vec<usize>,
    lists: &mut Vec<AttributeSet>,
) {
    if longest == list.len() {
        return;
    }
    for (at, &attribute) in from.iter().enumerate() {
        list.push(attribute);
        lists.push(AttributeSet::of(list.iter().copied()));
        combine(&from[at + 1..], longest, list, lists);
        list.pop();
    }
}

fn ranked(model: &LarderModel<'_>, list: AttributeSet) -> Vec<u8> {
    let mut ranked: Vec<usize> = list.iter().collect();
    ranked.sort_by(|&one, &other| {
        let (one, other) = (model.definedness(one), model.definedness(other));
        other.total_cmp(&one)
    });
    ranked.into_iter().map(|it| it as u8).collect()
}

/// Adds all allocations of all bits to these attributes. Each attribute gets at least one bit, and no more than it has
/// values for.
fn allocations(model: &LarderModel<'_>, ranked: &[u8], all: &mut Vec<Layout>) {
    let most: Vec<u8> = ranked.iter().map(|&it| bits_max(model, it)).collect();
    let total = model.deployment.regions.ilog2() as u8;
    let possible: u32 = most.iter().map(|&it| u32::from(it)).sum();
    let total = u32::from(total).min(possible) as u8;
    let mut bits = Vec::new();
    allocate(&most, total, &mut bits, &mut |bits| {
        let dimensions = ranked.iter().copied().zip(bits.iter().copied()).collect();
        all.push(Layout { dimensions });
        all.len() <= LAYOUTS_ALL
    });
}

fn allocate(
    most: &[u8],
    left: u8,
    bits: &mut Vec<u8>,
    each: &mut impl FnMut(&[u8]) -> bool,
) -> bool {
    if bits.len() == most.len() {
        return left > 0 || each(bits);
    }
    for count in 1..=left.min(most[bits.len()]) {
        bits.push(count);
        let continues = allocate(most, left - count, bits, each);
        bits.pop();
        if !continues {
            return false;
        }
    }
    true
}

fn bits_max(model: &LarderModel<'_>, attribute: u8) -> u8 {
    let most = model.deployment.regions.ilog2() as u8;
    let distinct = model.workload.attributes[usize::from(attribute)].distinct;
    distinct.map_or(most, |values| {
        let bits = u64::BITS - (values - 1).leading_zeros();
        most.min(bits as u8)
    })
}

/// Returns the layouts that differ in one bit, in one attribute, or in the outermost attribute.
pub(super) fn neighbours(model: &LarderModel<'_>, layout: &Layout) -> Vec<Layout> {
    let mut near = Vec::new();
    let dimensions = &layout.dimensions;
    let full = model.deployment.regions.ilog2();
    let used: u32 = dimensions.iter().map(|it| u32::from(it.1)).sum();
    for from in 0..dimensions.len() {
        let mut less = dimensions.clone();
        less[from].1 -= 1;
        // Remove a bit, or move it to another attribute, which may be a new one.
        let cut: Vec<(u8, u8)> = less.iter().copied().filter(|it| it.1 > 0).collect();
        if !cut.is_empty() {
            near.push(cut);
        }
        near.extend(one_more(model, &less));
        // Make another attribute the outermost one.
        let mut rotated = dimensions.clone();
        let outermost = rotated.remove(from);
        rotated.insert(0, outermost);
        near.push(rotated);
    }
    if used < full {
        near.extend(one_more(model, dimensions));
    }
    let layouts = near.into_iter().map(|dimensions| Layout { dimensions });
    layouts.filter(|it| it != layout).collect()
}

fn one_more(model: &LarderModel<'_>, dimensions: &[(u8, u8)]) -> Vec<Vec<(u8, u8)>> {
    let mut more = Vec::new();
    for to in 0..dimensions.len() {
        let mut with = dimensions.to_vec();
        with[to].1 += 1;
        if with[to].1 <= bits_max(model, with[to].0) {
            with.retain(|it| it.1 > 0);
            more.push(with);
        }
    }
    for attribute in model.searched().iter() {
        if dimensions.iter().all(|it| usize::from(it.0) != attribute) {
            let mut with = dimensions.to_vec();
            with.push((attribute as u8, 1));
            with.retain(|it| it.1 > 0);
            if bits_max(model, attribute as u8) > 0 {
                more.push(with);
            }
        }
    }
    more
}
