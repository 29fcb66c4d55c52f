//! A part of which a reader is notified. Its space may be the current one, a former one, or one that this core does not know yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_space::copies::{CopyRequest, CopyUpdate, RegionChange};
use larder_space::object::Object;
use larder_space::value::Row;

use super::DeclaredSpace;
use super::space::Space;

/// A reader's part.
pub struct SubscribedPart {
    part: CopyRequest,
    /// The space at the time when this part was one of its. `None` if the part belongs to a definition, or to cuts, that this
    /// core does not know yet.
    declared: Option<Arc<DeclaredSpace>>,
}

/// Returns the subspace of a part, if it is part of this space with its current declaration and cuts.
pub fn find_subspace(declared: &DeclaredSpace, part: &CopyRequest) -> Option<usize> {
    let subspace = declared.regions.as_ref()?.position(part.version)?;
    (declared.definition.name == part.space).then_some(subspace)
}

impl SubscribedPart {
    /// A subscription to a part of this space.
    pub fn new(part: CopyRequest, declared: &Arc<DeclaredSpace>) -> SubscribedPart {
        let declared = Some(declared.clone());
        SubscribedPart { part, declared }
    }

    pub fn resolve(part: CopyRequest, spaces: &BTreeMap<String, Space>) -> SubscribedPart {
        let mut subscribed = SubscribedPart {
            part,
            declared: None,
        };
        subscribed.apply_spaces(spaces);
        subscribed
    }

    /// Applies the current spaces.
    pub fn apply_spaces(&mut self, spaces: &BTreeMap<String, Space>) {
        if self.declared.is_none()
            && let Some(space) = spaces.get(&self.part.space)
            && find_subspace(&space.declared, &self.part).is_some()
        {
            self.declared = Some(space.declared.clone());
        }
    }

    /// Returns whether the space of this part was dropped here, or no longer has subspaces.
    pub fn is_stale(&self, spaces: &BTreeMap<String, Space>) -> bool {
        let Some(declared) = &self.declared else {
            return false;
        };
        let now = spaces.get(&self.part.space).map(|space| &space.declared);
        now.is_none_or(|now| now.created != declared.created || now.regions.is_none())
    }

    /// Returns the notification about an object of this space with its moves in each subspace; `None` if the part is not
    /// affected.
    pub fn plan_update(
        &self,
        now: &DeclaredSpace,
        key: &[u8],
        bytes: Option<&[u8]>,
        moved: &[RegionChange],
    ) -> Option<CopyUpdate> {
        if let Some(subspace) = find_subspace(now, &self.part) {
            return self.part.update_for(*moved.get(subspace)?);
        }
        let declared = self.declared.as_ref()?;
        let is_of_same = declared.created == now.created && self.part.space == now.definition.name;
        is_of_same
            .then(|| self.plan_stale_update(key, bytes))
            .flatten()
    }

    /// The same for a part that is not of the current space. The object's previous region is unknown then, so a removal is sent
    /// for every object that is not in the part.
    pub fn plan_stale_update(&self, key: &[u8], bytes: Option<&[u8]>) -> Option<CopyUpdate> {
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
        if region.is_some_and(|region| self.part.has_region(region)) {
            Some(CopyUpdate::Upsert)
        } else {
            Some(CopyUpdate::Delete)
        }
    }
}
