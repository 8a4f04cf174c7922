//! Candidates and the search space.

use crate::machine::Machine;
use fullshard_core::{Layout, MeshSpec};
use fullshard_models::layers::checkpoint::{ATTN_OUT, OUT_PROJ, QKV};
use fullshard_parallel::{GatherAhead, Remat, Strategy};
use serde::Serialize;

/// Settings to try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// Sequences per part of the batch.
    pub batch: usize,
    /// The remat policy.
    pub remat: Remat,
    /// MiB of logits at once; the platform's default if there is none.
    pub logits_chunk_mib: Option<usize>,
    /// The layout of sharded parameters.
    pub layout: Layout,
    /// Whether layers are scanned.
    pub scan_layers: bool,
    /// What is all-gathered before scanned layers need it.
    pub gather_ahead: GatherAhead,
    /// The sharding strategy.
    pub strategy: Strategy,
    /// The mesh; one axis if there is none.
    pub mesh: Option<MeshSpec>,
}

impl Candidate {
    /// The `train` flags of the candidate. The layout is a setting of the FSDP config, see
    /// [`Candidate::settings`].
    pub fn flags(&self) -> Vec<String> {
        let mut flags = vec![
            "--per_device_train_batch_size".to_owned(),
            self.batch.to_string(),
            "--remat".to_owned(),
            self.remat.to_string(),
            "--scan_layers".to_owned(),
            self.scan_layers.to_string(),
            "--fsdp".to_owned(),
            self.strategy.name().to_owned(),
        ];
        if let Some(mib) = self.logits_chunk_mib {
            flags.extend(["--logits_chunk_mib".to_owned(), mib.to_string()]);
        }
        // Without the flag the chip decides for scanned layers.
        if self.scan_layers {
            flags.extend(["--gather_ahead".to_owned(), self.gather_ahead.name().to_owned()]);
        }
        if let Some(mesh) = &self.mesh {
            flags.extend(["--mesh".to_owned(), mesh.to_string()]);
        }
        flags
    }

    /// What is gathered ahead with its other settings on a machine, unless stated.
    pub fn default_ahead(&self, machine: &Machine) -> GatherAhead {
        match self.can_gather_ahead() {
            true => machine.gather_ahead(),
            false => GatherAhead::Nothing,
        }
    }

    /// The `xla_fsdp_settings` keys of its layout.
    pub fn settings(&self) -> [(&'static str, bool); 2] {
        [("shard_param_on_dim_0", self.layout == Layout::Dim(0)), ("flatten_parameters", false)]
    }

    /// Whether the combination is valid and not equivalent to another one.
    fn is_distinct(&self, devices: usize, given_mesh: bool) -> bool {
        let single = devices == 1;
        // A second axis is for replicas.
        let fits_mesh = given_mesh || self.strategy.is_hybrid() == self.mesh.is_some();
        let unsharded = single || self.strategy == Strategy::NoShard;
        fits_mesh
            && (!single || self.strategy == Strategy::FullShard)
            && (!unsharded || self.layout == Layout::Dim(0))
            && (self.gather_ahead == GatherAhead::Nothing || !single)
            && self.is_scanned_where_needed()
    }

    /// Whether layers are scanned where they gather ahead or offload: only a scan bounds the time
    /// that offloaded activations are on the device.
    pub(super) fn is_scanned_where_needed(&self) -> bool {
        (self.gather_ahead == GatherAhead::Nothing || self.can_gather_ahead())
            && (!self.remat.offloads() || self.scan_layers)
    }

    fn can_gather_ahead(&self) -> bool {
        self.scan_layers && self.strategy.reshards()
    }
}

/// The search space.
#[derive(Debug, Clone)]
pub struct Space {
    /// Remat policies.
    pub remats: Vec<Remat>,
    /// MiB of logits at once; `None` is the platform's default.
    pub logits_chunks_mib: Vec<Option<usize>>,
    /// Parameter layouts.
    pub layouts: Vec<Layout>,
    /// Values of `scan_layers`.
    pub scans: Vec<bool>,
    /// Values of `gather_ahead`.
    pub aheads: Vec<GatherAhead>,
    /// Sharding strategies.
    pub strategies: Vec<Strategy>,
    /// Meshes; `None` is one axis.
    pub meshes: Vec<Option<MeshSpec>>,
    /// Meshes with tensor or context parallelism.
    pub parallel: Vec<MeshSpec>,
    /// More of them, for steps that nothing else fits.
    pub last_resort: Vec<MeshSpec>,
    /// Whether the user chose the mesh.
    pub given_mesh: bool,
    /// The most sequences per part of the batch.
    pub max_batch: usize,
}

impl Default for Space {
    fn default() -> Self {
        Space {
            remats: vec![
                Remat::None,
                Remat::Dots,
                Remat::Minimal,
                Remat::saving(&[QKV, ATTN_OUT, OUT_PROJ]),
                Remat::saving(&[QKV, ATTN_OUT]),
                Remat::SaveOut,
                Remat::saving(&[ATTN_OUT]),
                Remat::Full,
                Remat::MinimalOffload,
                Remat::QkvOffload,
            ],
            logits_chunks_mib: vec![None],
            layouts: vec![Layout::Dim(0), Layout::Flat],
            scans: vec![true, false],
            aheads: GatherAhead::ALL.to_vec(),
            strategies: Strategy::ALL.to_vec(),
            meshes: vec![None],
            parallel: Vec::new(),
            last_resort: Vec::new(),
            given_mesh: false,
            max_batch: 512,
        }
    }
}

impl Space {
    /// Every combination for a number of devices without tensor or context parallelism, with one
    /// sequence per device.
    pub fn choices(&self, devices: usize) -> Vec<Candidate> {
        let mut all = Vec::new();
        let meshes = || self.meshes.iter();
        for (&strategy, mesh) in
            self.strategies.iter().flat_map(|it| meshes().map(move |m| (it, m)))
        {
            for &layout in &self.layouts {
                for &scan_layers in &self.scans {
                    for &gather_ahead in &self.aheads {
                        all.extend(self.remats.iter().cloned().map(|remat| Candidate {
                            batch: 1,
                            remat,
                            logits_chunk_mib: None,
                            layout,
                            scan_layers,
                            gather_ahead,
                            strategy,
                            mesh: mesh.clone(),
                        }));
                    }
                }
            }
        }
        all.retain(|candidate| candidate.is_distinct(devices, self.given_mesh));
        all
    }

    /// Each combination with every size of a chunk of logits.
    pub(super) fn with_logits_chunks(&self, choices: Vec<Candidate>) -> Vec<Candidate> {
        let chunks = self.logits_chunks_mib.iter();
        let with = |choice: &Candidate, &logits_chunk_mib: &Option<usize>| Candidate {
            logits_chunk_mib,
            ..choice.clone()
        };
        choices.iter().flat_map(|choice| chunks.clone().map(move |mib| with(choice, mib))).collect()
    }
}

/// The batches to try, up to a maximum, in steps of at most an eighth.
pub(super) fn sizes(max: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1), |&size| Some(step_up(size))).take_while(move |&size| size <= max)
}

/// The next larger batch: every number up to sixteen, then every eighth of a power of two.
pub(super) fn step_up(size: usize) -> usize {
    size + (1 << size.max(1).ilog2().saturating_sub(3))
}

/// The next smaller batch.
pub(super) fn step_down(size: usize) -> Option<usize> {
    sizes(size.checked_sub(1)?).last()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_grow_by_an_eighth_at_most() {
        let all: Vec<usize> = sizes(40).collect();
        let expected = (1..=16).chain([18, 20, 22, 24, 26, 28, 30, 32, 36, 40]);
        assert_eq!(all, expected.collect::<Vec<_>>());
        assert_eq!((step_down(18), step_down(1), step_down(33)), (Some(16), None, Some(32)));
    }

    #[test]
    fn combinations_are_distinct() {
        let space = Space::default();
        // Policies: 10 scanned, 8 unrolled. Replicated: scanned or unrolled. Sharded: 2 layouts x
        // (scanned with nothing, vectors or layers gathered ahead, or unrolled); without resharding
        // nothing is gathered ahead.
        let (replicated, resharded, kept) = (10 + 8, 2 * (3 * 10 + 8), 2 * (10 + 8));
        assert_eq!(space.choices(4).len(), replicated + resharded + 2 * kept);
        assert_eq!(space.choices(1).len(), 10 + 8);
        // Each mesh with replicas adds the hybrid strategies.
        let nodes = space.with_meshes_of(&Machine::parse("h100:8x2").unwrap());
        let meshes: Vec<String> = nodes.meshes.iter().flatten().map(MeshSpec::to_string).collect();
        assert_eq!(meshes, ["data=2,fsdp=8", "data=4,fsdp=4", "data=8,fsdp=2"]);
        let hybrid = meshes.len() * (resharded + kept);
        assert_eq!(nodes.choices(16).len(), replicated + resharded + 2 * kept + hybrid);
        let torus = Space::default().with_meshes_of(&Machine::parse("v4-64").unwrap());
        let meshes: Vec<String> = torus.meshes.iter().flatten().map(MeshSpec::to_string).collect();
        assert_eq!(meshes, ["data=4,fsdp=8", "data=16,fsdp=2"]);
    }
}
