//! Tests of the records as others see them: through the crate's public names only.

mod bytes;
mod compatibility;
mod history;
mod records;
mod registry;
mod rehearsal;
