//! The commands of a calibration: objects that are written, searched and changed; and what FT.EXPLAIN answers.

pub const PREFIX: &str = "larder-calibrate:";
pub const OBJECTS: u64 = 20_000;
/// With the same `k`: a number, since of a tag an object may have several, and a search by it asks one region more. Objects of a group were not
/// written one after another: what a search finds is all over the memory.
pub const GROUP: u64 = 100;
const GROUPS: u64 = OBJECTS / GROUP;
/// With `a` set, and as many with `b`.
const MANY: u64 = 2_000;
/// Of the groups, those of short objects. The others come last.
const SHORT_GROUPS: u64 = GROUPS - MANY / GROUP;
/// What long objects have beside the others, which no index has.
const LONG_FIELDS: u64 = 14;
/// Of numbers, which are as good as drawn.
const NUMBERS: u64 = 1_000_003;

pub fn key(number: u64) -> String {
    format!("{PREFIX}{number}")
}

/// The words that write an object: `a` of the first ones, `b` of others, much more of the last ones.
pub fn object(number: u64) -> Vec<String> {
    const LAST: u64 = OBJECTS / MANY - 1;
    let mut words = set(number, number, &["k", "n1", "n2", "n3", "n4", "n5"]);
    match number / MANY {
        0 => words.extend(["a", "yes"].map(str::to_owned)),
        1 => words.extend(["b", "yes"].map(str::to_owned)),
        LAST => words.extend(
            (0..LONG_FIELDS).flat_map(|at| [format!("long{at:02}"), "of 12 bytes.".to_owned()]),
        ),
        _ => {}
    }
    words
}

/// Of an object's fields and values, and of their lengths.
pub fn bytes_of(number: u64) -> f64 {
    let words = object(number);
    let bytes: usize = words.iter().skip(2).map(|word| word.len() + 1).sum();
    bytes as f64
}

/// Of those of short objects, and of those of long ones.
fn group(number: u64) -> u64 {
    match number.checked_sub(OBJECTS - MANY) {
        None => number % SHORT_GROUPS,
        Some(long) => SHORT_GROUPS + long % (GROUPS - SHORT_GROUPS),
    }
}

/// The object whose turn it is: one far from those whose turns were just before.
pub fn scattered(turn: u64) -> u64 {
    turn % OBJECTS * 7919 % OBJECTS
}

/// A change of these fields of one object; when its turn comes again its values are others.
pub fn change(turn: u64, fields: &[&str]) -> Vec<String> {
    set(scattered(turn), turn, fields)
}

/// Writes an object's fields, their values by another number.
fn set(number: u64, values: u64, fields: &[&str]) -> Vec<String> {
    let mut words = vec!["HSET".to_owned(), key(number)];
    for field in fields {
        let value = match *field {
            "k" => (group(number) + values / OBJECTS) % GROUPS,
            _ => values * 7919 % NUMBERS,
        };
        words.extend([(*field).to_owned(), value.to_string()]);
    }
    words
}

/// What finds all objects of a group: short ones.
pub fn short(number: u64) -> String {
    let k = number % SHORT_GROUPS;
    format!("@k:[{k} {k}]")
}

/// The same, of long ones.
pub fn long(number: u64) -> String {
    let k = SHORT_GROUPS + number % (GROUPS - SHORT_GROUPS);
    format!("@k:[{k} {k}]")
}

/// A range that so many objects are in, another one each time: an index leads to them, and nothing else is asked.
pub fn listed(number: u64, objects: u64) -> String {
    let width = NUMBERS * objects / OBJECTS;
    let low = number * 7919 % (NUMBERS - width);
    format!("@n1:[{low} {}]", low + width)
}

/// What looks at so many objects that an index leads to, and finds half of them.
pub fn half(number: u64, objects: u64) -> String {
    format!("{} @n2:[0 {}]", listed(number, objects), NUMBERS / 2)
}

/// Of the objects of a group, finds about this share, other ones each time.
pub fn of_group(number: u64, share: f64) -> String {
    let width = (NUMBERS as f64 * share) as u64;
    let low = number * 7919 % (NUMBERS - width);
    format!("{} @n3:[{low} {}]", short(number), low + width)
}

/// What looks at all objects, one after the other, and finds a fourth of them.
pub fn many(number: u64) -> String {
    let low = number * 7919 % (NUMBERS / 2);
    let high = low + NUMBERS / 2;
    format!("@n1:[{low} {high}] @n2:[{low} {high}]")
}

/// Between two values that there are.
pub const NOTHING: &str = "@k:[100.5 100.5]";
/// The same of an attribute that no subspace is made of.
pub const NOWHERE: &str = "@n4:[100.5 100.5]";
/// A range of several regions of which nothing is found, since no object has the flag.
pub const WIDE: &str = "@a:{none} @k:[60.5 90.5]";
/// Indexes that have an object: of k, of five numbers, and of a or b that of one object of five.
pub const INDEXES: f64 = 6.2;
/// Two conditions, of which nothing fulfils either.
pub const NOTHING_BY_TWO: &str = "@k:[100.5 100.5] @n2:[100.5 100.5]";

pub fn search(space: &str, query: &str, rows: u64) -> Vec<String> {
    let rows = rows.to_string();
    let words = ["FT.SEARCH", space, query, "LIMIT", "0", &rows];
    words.map(str::to_owned).to_vec()
}

pub fn parts(words: &[String]) -> Vec<&[u8]> {
    words.iter().map(|word| word.as_bytes()).collect()
}

/// Regions and cores in what FT.EXPLAIN says: `subspace k: 2 of 64 regions, at 1 of 8 cores, ..`, `all owners: 8 of 8 cores, ..`.
pub fn contacted_in(told: &str) -> Option<(u64, u64)> {
    let is_line = |line: &&str| line.starts_with("subspace ") || line.starts_with("all owners");
    let line = told.lines().find(is_line)?;
    let before = |what: &str| -> Option<u64> {
        let (head, _) = line.split_once(what)?;
        let (head, _) = head.rsplit_once(" of ")?;
        let digits = head.rsplit(|it: char| !it.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    let regions = match line.starts_with("subspace ") {
        true => before(" regions")?,
        false => 0,
    };
    Some((regions, before(" cores")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_a_search_asks_is_read_from_what_is_told() {
        let told = "TAG:@k {\n  x\n}\n\nsubspace k: 2 of 64 regions, at 1 of 8 cores, 1 of 4 nodes\nnode-3 core 1: index k";
        assert_eq!(contacted_in(told), Some((2, 1)));
        let all = "x\n\nall owners: 8 of 8 cores, 4 of 4 nodes\n";
        assert_eq!(contacted_in(all), Some((0, 8)));
        let filling =
            "all owners, since regions of subspace k are being filled: 3 of 3 cores, 1 of 1 nodes";
        assert_eq!(contacted_in(filling), Some((0, 3)));
        assert_eq!(contacted_in("TAG"), None);
    }

    #[test]
    fn groups_are_of_one_size_and_of_short_objects_or_of_long_ones() {
        let of = |at: u64| (0..OBJECTS).filter(move |number| group(*number) == at);
        for at in [0, SHORT_GROUPS - 1, SHORT_GROUPS, GROUPS - 1] {
            assert_eq!(of(at).count() as u64, GROUP);
            let length = object(of(at).next().expect("one")).len();
            assert_eq!(length > 20, at >= SHORT_GROUPS, "group {at}");
        }
    }

    #[test]
    fn each_object_has_its_turn() {
        let all: std::collections::BTreeSet<u64> = (0..OBJECTS).map(scattered).collect();
        assert_eq!(all.len() as u64, OBJECTS);
    }

    #[test]
    fn a_change_changes_what_it_names() {
        let value = |words: &[String]| words[3].clone();
        for field in ["k", "n1"] {
            let (first, again) = (change(7, &[field]), change(7 + OBJECTS, &[field]));
            assert_eq!(first[1], again[1]);
            assert_ne!(value(&first), value(&again));
        }
        assert!(object(0).contains(&"a".to_owned()) && object(MANY).contains(&"b".to_owned()));
    }
}
