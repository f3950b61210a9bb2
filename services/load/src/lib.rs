//! Open-loop buyers.
