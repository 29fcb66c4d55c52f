//! One binary: small files made here, and the real ones where they are at hand.

mod csv;
mod other_formats;
mod real_data;
mod support;
