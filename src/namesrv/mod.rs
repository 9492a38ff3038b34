//! The name server: which broker serves which topic, as the brokers themselves say. A table in
//! memory and one thread; nothing is kept on disk, since every broker tells again within 30 s.

pub mod kv;
pub mod namesrv_loop;
pub mod registration_body;
pub mod requests;
pub mod routes;

pub use namesrv_loop::{Namesrv, NamesrvSettings};
