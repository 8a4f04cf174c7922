//! What is all-gathered ahead where the config leaves it to the chip.

use crate::config::{AheadChoice, RunConfig};
use crate::error::Result;
use fullshard_graph::Mesh;
use fullshard_models::Module;
use fullshard_parallel::{Error, GatherAhead, Placement, PlacementOptions};

impl RunConfig {
    /// The placement of a model on a mesh. It gathers ahead as the options state, or what the chip
    /// gains by if nothing was given and that is possible.
    pub(crate) fn placement(
        &self,
        tree: &Module,
        mesh: &Mesh,
        options: &PlacementOptions,
    ) -> Result<Placement> {
        let gather_ahead = self.default_ahead(mesh)?;
        if gather_ahead != GatherAhead::Nothing {
            let ahead = PlacementOptions { gather_ahead, ..options.clone() };
            match Placement::on_mesh(tree, mesh, &ahead) {
                Err(Error::NoGatherAhead { .. }) => {}
                placement => return Ok(placement?),
            }
        }
        Ok(Placement::on_mesh(tree, mesh, options)?)
    }

    /// What the chip gains by, if it is to decide. One device gathers nothing, and with `no_sync`
    /// everything is gathered before the first microbatch.
    fn default_ahead(&self, mesh: &Mesh) -> Result<GatherAhead> {
        let is_open = self.fsdp.gather_ahead == AheadChoice::Auto && !self.schedule.no_sync;
        match self.machine()? {
            Some(machine) if is_open && mesh.devices() > 1 => Ok(machine.gather_ahead()),
            _ => Ok(GatherAhead::Nothing),
        }
    }
}
