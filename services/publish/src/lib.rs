//! The producers: idempotent for requests (purchase, sweeper, timers, CLI), transactional for the lanes.

mod delivery_status;
mod requests;
mod transactional;

pub use delivery_status::group_generation;
pub use infra::postgres::OutRecord;
pub use requests::{Delivery, RequestProducer};
pub use transactional::{LaneProducer, TransactionError};
