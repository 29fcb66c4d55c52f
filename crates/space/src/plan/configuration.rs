//! The configuration to choose: subspaces as lists of attributes with bits, and the attributes with local indexes.

use super::workload::Workload;

/// A set of attributes, as bits by their index in the workload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttributeSet(pub u64);

impl AttributeSet {
    pub fn of(attributes: impl IntoIterator<Item = usize>) -> AttributeSet {
        AttributeSet(attributes.into_iter().fold(0, |set, at| set | 1 << at))
    }

    pub fn contains(self, attribute: usize) -> bool {
        self.0 >> attribute & 1 == 1
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    pub fn common(self, other: AttributeSet) -> AttributeSet {
        AttributeSet(self.0 & other.0)
    }

    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..64).filter(move |&at| self.contains(at))
    }
}

/// The attributes of a subspace with their bits, outermost first.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layout {
    pub dimensions: Vec<(u8, u8)>,
}

impl Layout {
    pub fn attributes(&self) -> AttributeSet {
        AttributeSet::of(self.dimensions.iter().map(|it| usize::from(it.0)))
    }

    pub fn regions(&self) -> f64 {
        let bits: u32 = self.dimensions.iter().map(|it| u32::from(it.1)).sum();
        f64::from(1 << bits)
    }

    /// Formats the layout as in the clause SUBSPACES: `city:4,price:4`.
    pub fn text(&self, workload: &Workload) -> String {
        let name = |&(attribute, bits): &(u8, u8)| {
            let name = &workload.attributes[usize::from(attribute)].name;
            format!("{name}:{bits}")
        };
        let names: Vec<String> = self.dimensions.iter().map(name).collect();
        names.join(",")
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configuration {
    pub subspaces: Vec<Layout>,
    /// The attributes with an ordered index in every region.
    pub indexes: AttributeSet,
}

/// The reason why a text is not a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutError(pub String);

impl std::fmt::Display for LayoutError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LayoutError {}

impl Configuration {
    /// Formats the configuration as clauses of FT.CREATE: `SUBSPACES 1 city:4,price:4 INDEX 1 city`.
    pub fn text(&self, workload: &Workload) -> String {
        let subspaces: Vec<String> = self.subspaces.iter().map(|it| it.text(workload)).collect();
        let indexes = self.index_names(workload);
        let mut words = Vec::new();
        for (clause, lists) in [("SUBSPACES", subspaces), ("INDEX", indexes)] {
            words.extend([clause.to_owned(), lists.len().to_string()]);
            words.extend(lists);
        }
        words.join(" ")
    }

    /// Returns the attributes with local indexes.
    pub fn index_names(&self, workload: &Workload) -> Vec<String> {
        let indexes = self.indexes.iter();
        indexes
            .map(|at| workload.attributes[at].name.clone())
            .collect()
    }

    /// Returns the configuration with local indexes on these attributes. Attributes that the workload does not name are
    /// ignored, because it neither searches nor changes them.
    pub fn with_indexes<'n>(
        self,
        names: impl IntoIterator<Item = &'n str>,
        workload: &Workload,
    ) -> Configuration {
        let known = names
            .into_iter()
            .filter_map(|name| workload.attribute(name));
        Configuration {
            indexes: AttributeSet::of(known),
            ..self
        }
    }

    /// Parses lists such as `city:4,price` into a configuration with local indexes on all attributes. Attributes
    /// without a number of bits share those that `regions` leaves.
    ///
    /// # Errors
    /// An attribute is unknown or occurs twice in a list, or there are more bits than the regions allow.
    pub fn parse(
        lists: &[&str],
        workload: &Workload,
        regions: u32,
    ) -> Result<Configuration, LayoutError> {
        let parse = |list: &&str| parse_list(list, workload, regions);
        Ok(Configuration {
            subspaces: lists.iter().map(parse).collect::<Result<_, _>>()?,
            indexes: AttributeSet::of(0..workload.attributes.len()),
        })
    }
}

fn parse_list(list: &str, workload: &Workload, regions: u32) -> Result<Layout, LayoutError> {
    let refuse = |what: String| Err(LayoutError(format!("subspace {list}: {what}")));
    let (mut attributes, mut requested) = (Vec::new(), Vec::new());
    for part in list.split(',') {
        let (name, bits) = match part.split_once(':') {
            None => (part, None),
            Some((name, bits)) => match bits.parse::<u8>() {
                Ok(bits) => (name, Some(bits)),
                Err(_) => return refuse(format!("{bits:?} is not a number of bits")),
            },
        };
        let Some(attribute) = workload.attribute(name) else {
            return refuse(format!("no attribute {name:?}"));
        };
        if attributes.contains(&attribute) {
            return refuse(format!("{name:?} occurs twice"));
        }
        attributes.push(attribute);
        requested.push(bits);
    }
    let values = |at: usize| workload.attributes[attributes[at]].distinct;
    match crate::mapping::allocate_bits(regions, &requested, values) {
        Err(error) => refuse(error.to_string()),
        Ok(bits) => Ok(Layout {
            dimensions: attributes.iter().map(|&it| it as u8).zip(bits).collect(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_counted_with_any_characters_in_names() {
        let attribute = |name: &str| super::super::workload::AttributeProfile {
            name: name.to_owned(),
            ordered: false,
            lists: false,
            distinct: None,
            hot: Vec::new(),
        };
        let workload = Workload {
            objects: 1,
            object_bytes: 1,
            gets: 0.0,
            unrecorded: 0.0,
            attributes: vec![attribute("a b"), attribute("c")],
            queries: Vec::new(),
            modifications: Vec::new(),
        };
        let configuration = Configuration {
            subspaces: vec![Layout {
                dimensions: vec![(0, 4), (1, 4)],
            }],
            indexes: AttributeSet::of([0, 1]),
        };
        assert_eq!(
            configuration.text(&workload),
            "SUBSPACES 1 a b:4,c:4 INDEX 2 a b c"
        );
        assert_eq!(
            Configuration::default().text(&workload),
            "SUBSPACES 0 INDEX 0"
        );
    }
}
