//! The single writer of decided state into Redis: settle, repair, sweeper, warden.
