//! The producers: idempotent for requests, transactional for the lanes.
