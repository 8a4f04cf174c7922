//! What is all-gathered for scanned layers before they need it.

use crate::error::Error;
use crate::placement::{Placement, PlacementOptions};
use crate::stack::Stacks;
use crate::wrap::Unit;
use serde::Serialize;

/// What is all-gathered for scanned layers before they need it; what takes more memory is greater.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum GatherAhead {
    /// Nothing.
    #[default]
    #[serde(rename = "false")]
    Nothing,
    /// Vectors, of all layers at once before the scan: otherwise their small collectives wait behind
    /// those of matrices.
    #[serde(rename = "vectors")]
    Vectors,
    /// The next layer, while one is computed.
    #[serde(rename = "true")]
    Layer,
}

impl GatherAhead {
    /// All values.
    pub const ALL: [GatherAhead; 3] =
        [GatherAhead::Nothing, GatherAhead::Vectors, GatherAhead::Layer];

    /// Its name in flags.
    pub fn name(self) -> &'static str {
        match self {
            GatherAhead::Nothing => "false",
            GatherAhead::Vectors => "vectors",
            GatherAhead::Layer => "true",
        }
    }

    /// What it does, if anything, in reports.
    pub fn description(self) -> Option<&'static str> {
        match self {
            GatherAhead::Nothing => None,
            GatherAhead::Vectors => Some("vectors gathered at once"),
            GatherAhead::Layer => Some("gathered ahead"),
        }
    }
}

impl Placement {
    /// Whether anything is all-gathered before scanned layers need it. One device gathers nothing.
    pub fn gathers_ahead(&self) -> bool {
        self.options.gather_ahead != GatherAhead::Nothing && self.devices() > 1
    }

    /// Whether scans all-gather the next layer while they compute one.
    pub fn gathers_layers_ahead(&self) -> bool {
        self.options.gather_ahead == GatherAhead::Layer && self.devices() > 1
    }

    /// Whether a parameter of scanned layers is all-gathered for all of them before the scan.
    pub(crate) fn is_gathered_before(&self, parameter: usize) -> bool {
        let vectors = self.options.gather_ahead == GatherAhead::Vectors && self.devices() > 1;
        let param = &self.parameters[parameter];
        vectors && param.stack.is_some() && param.dims.len() == 1
    }
}

/// Rejects gathering ahead where it cannot be used: it needs a scan, units in it, and weights that
/// are resharded, since the backward pass gathers ahead in its own order.
pub(crate) fn check(
    options: &PlacementOptions,
    units: &[Unit],
    scanned: &Stacks,
    reshard: bool,
) -> Result<(), Error> {
    let settings = &options.config.settings;
    let in_scan = |unit: &Unit| scanned.template(&unit.path).1.is_some();
    let reason = match options.gather_ahead {
        GatherAhead::Nothing => return Ok(()),
        _ if !options.scan_layers => "layers are unrolled (--scan_layers false)",
        _ if !units.iter().any(in_scan) => "no layer is or contains a unit",
        _ if !reshard => "gathered parameters are not resharded (reshard_after_forward is off)",
        GatherAhead::Vectors if settings.flatten_parameters => {
            "vectors share a collective with the rest of their unit (flatten_parameters is on)"
        }
        GatherAhead::Vectors if settings.coalesce_all_gather_ops => {
            "vectors share a collective with the rest of their unit (coalesce_all_gather_ops is on)"
        }
        _ => return Ok(()),
    };
    Err(Error::NoGatherAhead { reason })
}
