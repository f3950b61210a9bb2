//! The adapters to Postgres on a real server: the schema's version, the lane's transaction, its statements' plans.

mod lane;
mod plans;
mod property;
mod schema;
mod support;
