//! The commands, one file each.

pub mod bench;
pub mod checkpoint;
pub mod compile;
pub mod config;
pub mod devices;
pub mod exec;
pub mod goodput;
pub mod launch;
pub mod plan;
pub mod plugins;
pub mod shell;
pub mod simulate;
pub mod train;
