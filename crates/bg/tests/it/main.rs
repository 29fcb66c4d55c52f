//! Tests of bg, as its users and its stores see it.

mod measure;
mod population;
