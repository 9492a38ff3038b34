//! What the end-to-end tests share.
#![allow(dead_code)] // each test file is its own program and uses a part

pub mod client;
pub mod load;
pub mod process;
