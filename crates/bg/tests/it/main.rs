//! Tests of bg from outside.

mod measure;
mod population;
mod postgres;
mod servers;
mod sla;
