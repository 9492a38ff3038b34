//! What a client can ask of a broker, and what a broker does by itself.

pub mod outbox;
pub mod registration;
pub mod slave_sync;
