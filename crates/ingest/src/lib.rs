//! larder-ingest
