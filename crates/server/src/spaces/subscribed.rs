//! A part that a reader is told of, of a space as it is here, as it was, or as this core has yet to hear.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_space::copies::{Moved, Part, Told};
use larder_space::object::Object;
use larder_space::value::Row;

use super::Declared;
use super::space::Space;

/// What a reader is told of.
pub struct Subscribed {
    part: Part,
    /// The space as it was when this part was one of its. `None`: it is of a definition, or of cuts, that this core has yet to hear of.
    declared: Option<Arc<Declared>>,
}

/// The subspace that a part is of, if it is one of this space as it is declared and cut now.
pub fn subspace_of(declared: &Declared, part: &Part) -> Option<usize> {
    let subspace = declared.regions.as_ref()?.position(part.version)?;
    (declared.definition.name == part.space).then_some(subspace)
}

impl Subscribed {
    /// To a part of a space that is declared so.
    pub fn to(part: Part, declared: &Arc<Declared>) -> Subscribed {
        let declared = Some(declared.clone());
        Subscribed { part, declared }
    }

    pub fn of(part: Part, spaces: &BTreeMap<String, Space>) -> Subscribed {
        let mut subscribed = Subscribed {
            part,
            declared: None,
        };
        subscribed.follow(spaces);
        subscribed
    }

    /// These are the spaces now.
    pub fn follow(&mut self, spaces: &BTreeMap<String, Space>) {
        if self.declared.is_none()
            && let Some(space) = spaces.get(&self.part.space)
            && subspace_of(&space.declared, &self.part).is_some()
        {
            self.declared = Some(space.declared.clone());
        }
    }

    /// Whether the space of this part is dropped here, or has no subspaces any more.
    pub fn is_of_former(&self, spaces: &BTreeMap<String, Space>) -> bool {
        let Some(declared) = &self.declared else {
            return false;
        };
        let now = spaces.get(&self.part.space).map(|space| &space.declared);
        now.is_none_or(|now| now.created != declared.created || now.regions.is_none())
    }

    /// What is told of an object of this space that is this now, and has moved so in each subspace. `None`: the part is not concerned.
    pub fn told(
        &self,
        now: &Declared,
        key: &[u8],
        bytes: Option<&[u8]>,
        moved: &[Moved],
    ) -> Option<Told> {
        if let Some(subspace) = subspace_of(now, &self.part) {
            return self.part.told(*moved.get(subspace)?);
        }
        let declared = self.declared.as_ref()?;
        let is_of_same = declared.created == now.created && self.part.space == now.definition.name;
        is_of_same
            .then(|| self.told_of_former(key, bytes))
            .flatten()
    }

    /// The same, when the part is not of the space as it is now. Where the object was is not known then, so it is told of each that does not lie there.
    pub fn told_of_former(&self, key: &[u8], bytes: Option<&[u8]>) -> Option<Told> {
        let declared = self.declared.as_ref()?;
        let (definition, regions) = (&declared.definition, declared.regions.as_ref()?);
        let subspace = regions.position(self.part.version)?;
        if !definition.covers_key(key) {
            return None;
        }
        let object = bytes.and_then(|bytes| Object::decode(bytes).ok());
        let object = object.filter(|object| definition.covers(key, object));
        let region = object.map(|object| {
            let (row, _) = Row::of(definition, &object);
            regions.region(subspace, key, &row)
        });
        match region.is_some_and(|region| self.part.has_region(region)) {
            true => Some(Told::Is),
            false => Some(Told::Gone),
        }
    }
}
