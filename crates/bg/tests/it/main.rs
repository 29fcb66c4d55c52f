//! Tests of bg from outside.

mod conformance;
mod larder;
mod measure;
mod mixes;
mod population;
mod postgres;
mod rate;
mod redis;
mod servers;
mod sla;
mod trial;
