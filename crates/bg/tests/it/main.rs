//! Integration tests of bg.

mod command;
mod conformance;
mod coordinate;
mod deck;
mod deck_page;
mod draws;
mod end_state;
mod faults;
mod friendships;
#[path = "../../../server/tests/it/killable.rs"]
mod killable;
mod killed;
mod larder;
mod measure;
mod mixes;
mod mongodb;
mod notes;
mod pages;
mod population;
mod postgres;
mod rate;
mod redis;
mod report;
mod servers;
mod sla;
mod trace_page;
mod trial;
mod under_load;
mod validate;
