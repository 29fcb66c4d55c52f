//! Members, resources and actions, as functions of options and seeds, without a clock, a socket or a data store.
//!
//! | file | contents |
//! |---|---|
//! | `action` | the fourteen actions of members |
//! | `session` | sequences of actions by one member |
//! | `mix` | the frequencies of actions and sessions |
//! | `population` | members, friendships, resources and comments, as they are loaded |
//! | `content` | their bytes, which are known without being stored |
//! | `draw` | the choice of the next member, among all or among one client's own |
//! | `state` | the clients' knowledge of the members during a run |
//! | `item` | the identifiers of these things in a trace |
//! | `duration` | parsing and formatting of durations |

pub mod action;
pub mod content;
pub mod draw;
pub(crate) mod duration;
pub mod item;
pub mod mix;
pub mod population;
pub mod session;
pub mod state;
