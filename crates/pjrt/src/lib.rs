//! Devices: a safe wrapper over the PJRT C API.

pub mod hlo;
