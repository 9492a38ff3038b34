//! What every other module stands on. Nothing here knows about brokers.

pub mod clock;
pub mod data_version;
pub mod failure_log;
pub mod json;
pub mod json_file;
pub mod reader;
pub mod sys;
pub mod watermark;
