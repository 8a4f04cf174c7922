//! The commands, one file each.

pub mod compile;
pub mod devices;
pub mod exec;
pub mod plugins;
