//! Random numbers, and random join definitions over tables with few values.

pub struct Random(larder_types::Random);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(larder_types::Random::new(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.word()
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

/// Values of slots, all two bytes long, for slots with a declared width of 2.
pub const VALUES: [&str; 5] = ["aa", "ab", "b1", "b2", "zz"];
/// Values for slots without a width: other lengths too, and some that contain bytes that end other slots.
pub const LOOSE: [&str; 6] = ["a", "aa", "a!", "b:c", "b", "zz9"];

/// Returns a random definition: its sources are base tables and outputs, and its output uses their slots.
pub fn definition(random: &mut Random, widths: bool) -> String {
    let slots = ["a", "b", "c", "d"];
    let mut sources = Vec::new();
    let mut used: Vec<&str> = Vec::new();
    for _ in 0..1 + random.below(3) {
        let table = random.pick(&["p", "p", "q", "r", "x", "y", "z"]);
        let count = match table {
            "r" => 1,
            "q" => 3,
            "p" => 2,
            _ => 1 + random.below(3),
        };
        let mut pattern = format!("{table}|");
        for at in 0..count {
            if at > 0 {
                pattern.push_str(if !widths && random.chance(10) {
                    ":"
                } else {
                    "|"
                });
            }
            if random.chance(8) {
                pattern.push_str(if widths { "aa" } else { "a" });
            } else {
                let slot = random.pick(&slots);
                used.push(slot);
                pattern.push_str(&format!("<{slot}>"));
            }
        }
        let mut clause = pattern;
        if random.chance(15) {
            clause.push_str(random.pick(&[
                " where value > 2",
                " where value <= 7 and value != 3",
                " where value >= b",
                " where value < 7",
            ]));
        } else if random.chance(8) && clause.contains("<a>") {
            clause.push_str(" where <a> >= ab");
        }
        sources.push(clause);
    }
    let value = random.below(sources.len());
    let operator = random.pick(&[
        "copy",
        "copy",
        "copy",
        "count",
        "sum",
        "avg",
        "min",
        "max",
        "distinct",
        "top 2",
        "top 1 asc",
        "top 3 desc",
    ]);
    let table = random.pick(&["x", "y", "z", "w"]);
    let mut output = format!("{table}|");
    used.sort_unstable();
    used.dedup();
    if random.chance(25) {
        output.push_str(random.pick(&["k|", "l|"]));
    }
    let mut parts: Vec<String> = Vec::new();
    for slot in &used {
        if random.chance(75) {
            parts.push(format!("<{slot}>"));
        }
    }
    if random.chance(30) {
        parts.reverse();
    }
    if operator.starts_with("top") {
        let at = random.below(parts.len() + 1);
        parts.insert(at, "<rank:2>".into());
    }
    if random.chance(25) {
        let word = random.pick(&["m", "n", "mn"]);
        parts.insert(random.below(parts.len() + 1), word.into());
    }
    if parts.is_empty() {
        parts.push("all".into());
    }
    output.push_str(&parts.join("|"));
    if widths {
        for slot in &used {
            output = output.replacen(&format!("<{slot}>"), &format!("<{slot}:2>"), 1);
            for source in &mut sources {
                // The width is stated only in the first source if the output does not have the slot.
                *source = source.replacen(&format!("|<{slot}>"), &format!("|<{slot}:2>"), 1);
            }
        }
    }
    let mode = match random.below(10) {
        0..=5 => "",
        6 | 7 => "pull ",
        8 => "snapshot 1 ",
        _ if operator == "copy" => "auto ",
        _ => "push ",
    };
    let clauses: Vec<String> = sources
        .iter()
        .enumerate()
        .map(|(at, s)| format!("{} {s}", if at == value { operator } else { "check" }))
        .collect();
    format!("{output} = {mode}{}", clauses.join(" "))
}

/// Joins that can be filled from either end as far as a read needs, and others over the same tables that cannot.
pub const ORDERED: [&str; 13] = [
    "x|<a:2>|<b:2>|<c:2> = check p|<a>|<c> copy q|<c>|<b>|<a>",
    "x|<a:2>|<b:2>|<c:2> = auto check p|<a>|<c> copy q|<c>|<b>|<a>",
    "x|<a:2>|<b:2>|<c:2> = snapshot 1 copy q|<a>|<b>|<c>",
    "x|<a:2>|<b:2>|<c:2> = copy q|<a>|<c>|<b>",
    "y|<b:2>|<a:2> = copy p|<b>|<a>",
    "y|<a:2>|<b:2> = pull copy p|<a>|<b>",
    "y|<a:2>|<b:2> = pull check r|<a> copy q|<a>|<b>|<c:2>",
    "z|<a:2>|<b:2> = count q|<a>|<b>|<c:2>",
    "z|<a:2>|<b:2> = sum q|<a>|<b>|<c:2>",
    "z|<a:2>|<rank:2> = top 2 q|<a>|<b:2>|<c:2>",
    "w|<a:2>|<b:2> = max q|<a>|<b>|<c:2> where value > 2",
    "w|<a:2>|<b:2>|<c:2> = check r|<c> check p|<a>|<c> copy q|<c>|<b>|<d:2>",
    "w|<a:2>|<b:2>|<c:2> = copy x|<a>|<b>|<c>",
];
