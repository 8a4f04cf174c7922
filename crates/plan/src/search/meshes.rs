//! The meshes that a search tries beside one axis: replicas, tensor and context parallelism.

use super::candidate::{Candidate, Space};
use crate::machine::Machine;
use fullshard_core::{Layout, MeshSpec};
use fullshard_parallel::Strategy;
use fullshard_parallel::rules::{CONTEXT, FSDP, TENSOR};

/// The maximum number of meshes with replicas that a search tries.
const MAX_MESHES: usize = 4;

/// The tokens of a sequence from which context parallelism is tried even if plain FSDP fits.
const LONG: usize = 16 << 10;

/// The most devices that share a sequence.
const MAX_CONTEXT: usize = 64;

impl Space {
    /// Adds the meshes of a machine on which replicas make sense: each shards over some of the
    /// nearest devices, such as a node, a slice or whole dimensions of a torus.
    pub fn with_meshes_of(mut self, machine: &Machine) -> Space {
        let devices = machine.devices;
        let mut sizes: Vec<usize> = match machine.torus_dims() {
            Some(dims) => {
                let product = |size: &mut usize, dim: &usize| {
                    *size *= dim;
                    Some(*size)
                };
                dims.iter().scan(1, product).collect()
            }
            None => powers(devices.saturating_sub(1)).chain([machine.network.island]).collect(),
        };
        sizes.retain(|&size| size > 1 && size < devices && devices.is_multiple_of(size));
        sizes.sort_unstable();
        sizes.dedup();
        let mesh = |&size: &usize| Some(MeshSpec::of(&[("data", devices / size), (FSDP, size)]));
        self.meshes.extend(sizes.iter().rev().take(MAX_MESHES).map(mesh));
        self
    }

    /// Adds the meshes of a machine with tensor parallelism, inside a node or along one dimension
    /// of a torus, and with context parallelism for long sequences, by their tokens. Both together,
    /// and context parallelism of short sequences, are for steps that nothing else fits.
    pub fn with_parallel_meshes_of(mut self, machine: &Machine, tokens: usize) -> Space {
        let devices = machine.devices;
        let near = match machine.torus_dims() {
            Some(dims) => dims.first().copied().unwrap_or(1),
            None => machine.network.island,
        };
        for context in [1].into_iter().chain(powers(devices.min(MAX_CONTEXT))) {
            for tensor in [1].into_iter().chain(powers(near)) {
                let both = context * tensor;
                if both == 1 || !devices.is_multiple_of(both) || !near.is_multiple_of(tensor) {
                    continue;
                }
                let axes = [(FSDP, devices / both), (CONTEXT, context), (TENSOR, tensor)];
                let axes: Vec<_> = axes.into_iter().filter(|&(_, size)| size > 1).collect();
                let is_common = context == 1 || (tensor == 1 && tokens >= LONG);
                let meshes = if is_common { &mut self.parallel } else { &mut self.last_resort };
                meshes.push(MeshSpec::of(&axes));
            }
        }
        self
    }

    /// The combinations with meshes of tensor or context parallelism, with one sequence per part
    /// of the batch. They are fully sharded.
    pub(super) fn parallel_choices(&self, meshes: &[MeshSpec]) -> Vec<Candidate> {
        let mut all = Vec::new();
        for mesh in meshes {
            for &scan_layers in &self.scans {
                for &gather_ahead in &self.aheads {
                    all.extend(self.remats.iter().cloned().map(|remat| Candidate {
                        batch: 1,
                        remat,
                        logits_chunk_mib: None,
                        layout: Layout::Dim(0),
                        scan_layers,
                        gather_ahead,
                        strategy: Strategy::FullShard,
                        mesh: Some(mesh.clone()),
                    }));
                }
            }
        }
        all.retain(Candidate::is_scanned_where_needed);
        all
    }
}

/// The powers of two from 2 to a maximum.
fn powers(max: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(2), |size| Some(2 * size)).take_while(move |&size| size <= max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meshes(machine: &str, tokens: usize) -> [Vec<String>; 2] {
        let machine = Machine::parse(machine).unwrap();
        let space = Space::default().with_parallel_meshes_of(&machine, tokens);
        [space.parallel, space.last_resort].map(|all| all.iter().map(MeshSpec::to_string).collect())
    }

    #[test]
    fn tensor_axes_stay_in_a_node() {
        let [common, last_resort] = meshes("h100:4x2", 2048);
        assert_eq!(common, ["fsdp=4,tensor=2", "fsdp=2,tensor=4"]);
        assert!(last_resort.contains(&"context=2,tensor=4".to_owned()), "{last_resort:?}");
        assert!(last_resort.contains(&"context=8".to_owned()), "{last_resort:?}");
    }

    #[test]
    fn tensor_axes_are_along_a_dimension_of_the_torus() {
        let [common, _] = meshes("v4-128", 2048);
        assert_eq!(common, ["fsdp=32,tensor=2", "fsdp=16,tensor=4"]);
    }

    /// What is gathered ahead and what is offloaded needs a scan.
    #[test]
    fn combinations_gather_ahead_in_scans() {
        let space = Space::default();
        let choices = space.parallel_choices(&["fsdp=2,tensor=2".parse().unwrap()]);
        let scanned = choices.iter().filter(|choice| choice.scan_layers).count();
        assert_eq!((scanned, choices.len()), (3 * 10, 3 * 10 + 8));
    }

    #[test]
    fn long_sequences_are_sharded() {
        let [common, _] = meshes("h100:4", 32768);
        let expected = ["fsdp=2,tensor=2", "tensor=4", "fsdp=2,context=2", "context=4"];
        assert_eq!(common, expected);
        assert_eq!(meshes("h100", 32768), [Vec::<String>::new(), Vec::new()]);
    }
}
