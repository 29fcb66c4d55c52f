//! Memory under a limit: `evict` says which ranges go, `forget` lets them go.

pub(crate) mod evict;
pub(crate) mod forget;
