//! What a search may choose from.

use fullshard_core::Layout;
use fullshard_parallel::{Remat, Strategy};
use serde::Serialize;

/// Settings to be tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// Sequences on each device at once.
    pub batch: usize,
    /// What layers remember.
    pub remat: Remat,
    /// How parameters are stored where they are sharded.
    pub layout: Layout,
    /// Whether layers are a loop.
    pub scan_layers: bool,
    /// Whether the loop gathers a layer ahead.
    pub gather_ahead: bool,
    /// What is sharded.
    pub strategy: Strategy,
}

impl Candidate {
    /// The flags of `train` for it. The layout is a setting of the FSDP config,
    /// [`Candidate::settings`].
    pub fn flags(&self) -> Vec<String> {
        let mut flags = vec![
            "--per_device_train_batch_size".to_owned(),
            self.batch.to_string(),
            "--remat".to_owned(),
            self.remat.name().to_owned(),
            "--scan_layers".to_owned(),
            self.scan_layers.to_string(),
            "--fsdp".to_owned(),
            self.strategy.name().to_owned(),
        ];
        if self.gather_ahead {
            flags.push("--gather_ahead".to_owned());
        }
        flags
    }

    /// The keys of `xla_fsdp_settings` for its layout.
    pub fn settings(&self) -> [(&'static str, bool); 2] {
        [("shard_param_on_dim_0", self.layout == Layout::Dim0), ("flatten_parameters", false)]
    }

    /// Whether it is one that there can be, and not another by a different name.
    fn makes_sense(&self, devices: usize) -> bool {
        let alone = devices == 1;
        let nothing_cut = alone || self.strategy == Strategy::NoShard;
        let can_gather_ahead = !alone && self.scan_layers && self.strategy == Strategy::FullShard;
        (!alone || self.strategy == Strategy::FullShard)
            && (!nothing_cut || self.layout == Layout::Dim0)
            && (!self.gather_ahead || can_gather_ahead)
    }
}

/// Everything to choose from.
#[derive(Debug, Clone)]
pub struct Space {
    /// What layers may remember.
    pub remats: Vec<Remat>,
    /// How parameters may be stored.
    pub layouts: Vec<Layout>,
    /// Whether layers may be a loop.
    pub scans: Vec<bool>,
    /// Whether it may gather ahead.
    pub aheads: Vec<bool>,
    /// What may be sharded.
    pub strategies: Vec<Strategy>,
    /// The most sequences on a device.
    pub most_sequences: usize,
}

impl Default for Space {
    fn default() -> Self {
        Space {
            remats: vec![Remat::None, Remat::Dots, Remat::Full],
            layouts: vec![Layout::Dim0, Layout::Flat],
            scans: vec![true, false],
            aheads: vec![false, true],
            strategies: vec![Strategy::FullShard, Strategy::ShardGradOp, Strategy::NoShard],
            most_sequences: 512,
        }
    }
}

impl Space {
    /// Every combination on so many devices, with one sequence on each.
    pub fn choices(&self, devices: usize) -> Vec<Candidate> {
        let mut all = Vec::new();
        for &strategy in &self.strategies {
            for &layout in &self.layouts {
                for &scan_layers in &self.scans {
                    for &gather_ahead in &self.aheads {
                        all.extend(self.remats.iter().map(|&remat| Candidate {
                            batch: 1,
                            remat,
                            layout,
                            scan_layers,
                            gather_ahead,
                            strategy,
                        }));
                    }
                }
            }
        }
        all.retain(|candidate| candidate.makes_sense(devices));
        all
    }
}

/// The batches that are tried, up to the largest: steps of at most an eighth.
pub(super) fn sizes(most: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1), |&size| Some(step_up(size)))
        .take_while(move |&size| size <= most)
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
    fn there_is_one_of_each_kind() {
        let space = Space::default();
        // Replicated: 2 loops x 3. Sharded: 2 layouts x (ahead or not in a loop, or written out) x 3, and
        // without resharding nothing is gathered ahead.
        assert_eq!(space.choices(4).len(), 6 + 2 * 3 * 3 + 2 * 2 * 3);
        assert_eq!(space.choices(1).len(), 6);
    }
}
