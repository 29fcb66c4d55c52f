//! Members, resources and actions: who and what there is, and what members do: all of it a function of options and seeds, without a clock, a socket or a data store.
//!
//! | read | for |
//! |---|---|
//! | `action` | what members do: fourteen actions |
//! | `session` | several actions by one member |
//! | `mix` | how often each is drawn |
//! | `population` | members, friendships, resources, comments, as they are loaded |
//! | `content` | their bytes, which can be known without being kept |
//! | `draw` | who acts next; of all members, or of one client's own |
//! | `state` | what the clients know of the members while they act |
//! | `item` | how all of that is named in a trace |
//! | `duration` | times as people write them |

pub mod action;
pub mod content;
pub mod draw;
pub(crate) mod duration;
pub mod item;
pub mod mix;
pub mod population;
pub mod session;
pub mod state;
