//! Tests of bg from outside.

mod measure;
mod population;
mod sla;
