//! The orders service: one consumer, a lane a partition.
