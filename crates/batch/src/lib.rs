//! larder-batch
