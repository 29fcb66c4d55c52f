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
        } => members::added(map, registration, *at_ms),
        Change::MemberUpdated { node, registration } => members::updated(map, *node, registration),
        Change::MembersAdmitted { nodes, at_ms } => members::admitted(map, nodes, *at_ms),
        Change::MembersLost {
            nodes,
            owners,
            at_ms,
        } => members::lost(map, nodes, owners, *at_ms),
        Change::MemberReturned {
            node,
            registration,
            at_ms,
        } => members::returned(map, *node, registration, *at_ms),
        Change::MemberLeaving { node, leaving } => members::leaving(map, *node, *leaving),
        Change::MemberStopping { node } => members::stopping(map, *node),
        Change::MemberGone { node } => members::gone(map, *node),
        Change::RowsGivenUp { node } => slots::rows_given_up(map, *node),
        Change::PlacementTaken {
            goals,
            outputs,
            from,
        } => slots::placement_taken(map, goals, outputs, *from),
        Change::FillsBegun { slots } => slots::fills_begun(map, slots),
        Change::FillsEnded { slots } => slots::fills_ended(map, slots),
        Change::SyncChanged { by, slots } => slots::sync_changed(map, *by, slots),
        Change::OwnersMoved { slots } => slots::owners_moved(map, slots),
        Change::CopiesDropped { slots } => slots::copies_dropped(map, slots),
        Change::PushBegun { .. } => stores::push_begun(map, change),
        Change::PushProgressed {
            store,
            version,
            progress,
            at_ms,
        } => stores::push_progressed(map, store, *version, *progress, *at_ms),
        Change::PushFailed {
            store,
            version,
            why,
        } => stores::push_failed(map, store, *version, why),
        Change::VersionLive {
            store,
            version,
            lacking,
        } => stores::version_live(map, store, *version, lacking),
        Change::RolledBack {
            store,
            ask,
            to,
            lacking,
        } => stores::rolled_back(map, store, ask, *to, lacking),
        Change::CaughtUp {
            store,
            version,
            nodes,
        } => stores::caught_up(map, store, *version, nodes),
        Change::VersionRemoved { store, version } => stores::version_removed(map, store, *version),
        Change::StoreRemoved { store } => stores::store_removed(map, store),
        Change::Defined {
            what,
            name,
            text,
            replace,
        } => definitions::defined(map, *what, name, text, *replace),
        Change::Undefined { what, name } => definitions::undefined(map, *what, name),
        Change::SpacesSet { sets } => definitions::spaces_set(map, sets),
        Change::SettingsChanged { settings } => definitions::settings_changed(map, settings),
        Change::Recovered {
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
