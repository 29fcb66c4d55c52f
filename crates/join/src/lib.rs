//! Cache joins over ordered tables.
