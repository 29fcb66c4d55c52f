//! Applies changes. Each function changes a map that its caller discards on failure.

mod definitions;
mod members;
mod recovered;
mod slots;
mod stores;

use super::{Change, Map};

pub(super) fn apply(map: &mut Map, change: &Change) -> Result<(), String> {
    match change {
        Change::MemberAdded {
            registration,
            at_ms,
        } => members::add(map, registration, *at_ms),
        Change::MemberUpdated { node, registration } => members::update(map, *node, registration),
        Change::MembersAdmitted { nodes, at_ms } => members::admit(map, nodes, *at_ms),
        Change::MembersLost {
            nodes,
            owners,
            at_ms,
        } => members::mark_lost(map, nodes, owners, *at_ms),
        Change::MemberReturned {
            node,
            registration,
            at_ms,
        } => members::mark_returned(map, *node, registration, *at_ms),
        Change::MemberLeaving { node, leaving } => members::set_departure(map, *node, *leaving),
        Change::MemberStopping { node } => members::mark_stopping(map, *node),
        Change::MemberRemoved { node } => members::remove(map, *node),
        Change::RowsDiscarded { node } => slots::discard_rows(map, *node),
        Change::PlacementReplaced {
            goals,
            outputs,
            from,
        } => slots::replace_placement(map, goals, outputs, *from),
        Change::FillsBegun { slots } => slots::begin_fills(map, slots),
        Change::FillsEnded { slots } => slots::end_fills(map, slots),
        Change::SyncChanged { by, slots } => slots::change_in_sync(map, *by, slots),
        Change::OwnersMoved { slots } => slots::move_owners(map, slots),
        Change::CopiesDropped { slots } => slots::drop_copies(map, slots),
        Change::PushBegun { .. } => stores::begin_push(map, change),
        Change::PushProgressed {
            store,
            version,
            progress,
            at_ms,
        } => stores::record_push_progress(map, store, *version, *progress, *at_ms),
        Change::PushFailed {
            store,
            version,
            why,
        } => stores::fail_push(map, store, *version, why),
        Change::VersionLive {
            store,
            version,
            missing: lacking,
        } => stores::make_version_live(map, store, *version, lacking),
        Change::RolledBack {
            store,
            request: ask,
            to,
            missing: lacking,
        } => stores::roll_back(map, store, ask, *to, lacking),
        Change::CaughtUp {
            store,
            version,
            nodes,
        } => stores::record_caught_up(map, store, *version, nodes),
        Change::VersionRemoved { store, version } => stores::remove_version(map, store, *version),
        Change::StoreRemoved { store } => stores::remove_store(map, store),
        Change::DefinitionSet {
            kind,
            name,
            text,
            replace,
        } => definitions::define(map, *kind, name, text, *replace),
        Change::DefinitionDropped { kind, name } => definitions::drop_definition(map, *kind, name),
        Change::SpacesSet { sets } => definitions::set_spaces(map, sets),
        Change::SettingsChanged { settings } => definitions::change_settings(map, settings),
        Change::MapRecovered {
            epoch,
            holders,
            at_ms,
        } => recovered::recovered(map, *epoch, holders, *at_ms),
    }
}

/// Returns an error unless `holds`.
fn ensure(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}
