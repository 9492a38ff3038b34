//! What a client can ask of a broker, and what a broker does by itself.

pub mod admin;
pub mod clients;
pub mod data_version;
pub mod delay;
pub mod groups;
pub mod locks;
pub mod offsets;
pub mod outbox;
pub mod refusal;
pub mod runtime_info;
pub mod stats;
pub mod subscription;
pub mod table;
pub mod topics;
