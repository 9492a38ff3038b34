//! What a client can ask of a broker, and what a broker does by itself.

pub mod data_version;
pub mod groups;
pub mod outbox;
pub mod table;
pub mod topics;
