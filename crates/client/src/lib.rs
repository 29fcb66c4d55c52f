//! larder-client
