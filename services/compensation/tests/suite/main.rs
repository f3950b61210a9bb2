//! The service in process on real servers; the tests play the lane: they decide with the real rules, write Postgres, then publish.

mod apart;
mod lane;
mod rebuild;
mod returns;
mod settle;
mod stage;
mod sweep;
