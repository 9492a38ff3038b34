//! One socket's plumbing: what every event loop here needs, and nothing of any protocol.

pub mod listener;
pub mod slots;
pub mod stream;
