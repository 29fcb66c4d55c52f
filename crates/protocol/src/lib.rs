//! larder-protocol
