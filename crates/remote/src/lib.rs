//! larder-remote
