//! The client protocol without sockets: frames, headers, their fields, the numbers. And one
//! blocking client, for the command line and for what a broker asks of its peers.

pub mod client;
pub mod codes;
pub mod command;
pub mod fields;
pub mod frame;
pub mod json_header;

pub use client::Client;
pub use command::Command;
pub use fields::Fields;
