//! Programs that compute checksums of the state on every device: of replicas, which must be equal,
//! and of the results of a step that is run twice.
//!
//! A checksum is of bits, so equal values have equal ones, and each device's are of what is in its
//! memory. A tensor has two: the sum of its elements as integers, and their sum weighted by odd
//! numbers that follow their positions. Any single element that differs changes both; others are
//! found but for one time in 2^32 or less.

use crate::arguments::{StepResults, TrainState};
use crate::error::Error;
use crate::layout::TensorSpec;
use crate::ordered::Ordered;
use crate::program::trace_error;
use crate::spec::StepSpec;
use fullshard_graph::{
    DType, MeshExt, Program, Result, Sharding, Tensor, concatenate, constant, iota,
};

/// The checksums of a tensor.
pub const CHECKSUMS: usize = 2;

impl StepSpec {
    /// Whether most of the state, by its size, is on several devices.
    pub fn has_replicas(&self) -> Result<bool, Error> {
        let (mut replicated, mut all) = (0, 0);
        for tensor in self.state()?.flatten() {
            let shards: usize = tensor.tensor.sharding.parts().product();
            let bytes = tensor.tensor.ty.bytes();
            all += bytes;
            replicated += if shards < self.placement.devices() { bytes } else { 0 };
        }
        Ok(2 * replicated > all)
    }

    /// The program from the state to the checksums of its shards on each device, which all devices
    /// get: `u32[devices, CHECKSUMS · tensors]`, with the tensors in the order of the state.
    pub fn state_checksums(&self) -> Result<Program, Error> {
        let arguments = self.state()?.map(|state| state.tensor.argument());
        let (mesh, axes) = (&self.placement.mesh, self.placement.all_axes());
        let results = vec![mesh.replicated(2)];
        self.manual_program("checksums", &axes, &arguments, &results, |state| {
            let here = checksums(&state.flatten())?;
            Ok(vec![match self.placement.devices() {
                1 => here,
                _ => mesh.group(&axes).all_gather(&here, 0)?,
            }])
        })
    }

    /// The program of a training step that returns, instead of the next state and the metrics, their
    /// checksums on each device, `u32[devices, CHECKSUMS · tensors]`. It donates nothing, so that it
    /// can be run twice from one state.
    pub fn step_checksums(&self) -> Result<Program, Error> {
        let arguments = self.step_arguments()?.map(TensorSpec::argument);
        let axes = self.placement.manual_axes();
        let by_device = self.by_device(&axes)?;
        let state = self.state()?.map(|state| state.tensor.sharding.clone());
        let stored = StepResults { state, metrics: self.placement.mesh.replicated(1) };
        let program = self.manual_program(
            "step_checksums",
            &axes,
            &arguments,
            &vec![by_device.clone()],
            |arguments| self.checked_step(self.step(arguments)?, &stored, &by_device),
        )?;
        Ok(program.in_dialect(self.placement.options.dialect))
    }

    /// The checksums of the results of a step, on each device's own shards.
    fn checked_step(
        &self,
        results: StepResults<Tensor>,
        stored: &StepResults<Sharding>,
        by_device: &Sharding,
    ) -> Result<Vec<Tensor>> {
        let pairs = results.zip(stored).map_err(|error| trace_error("step_checksums", error))?;
        let pairs = pairs.flatten().into_iter();
        let locals: Vec<_> = pairs.map(|(tensor, sharding)| (tensor, sharding.clone())).collect();
        let by_device = [by_device.clone()];
        let mesh = &self.placement.mesh;
        mesh.per_shard(&locals, &by_device, |locals| Ok(vec![checksums(&locals)?]))
    }

    /// The sharding of a matrix with a row per device, given the axes that are manual first.
    fn by_device(&self, manual: &[usize]) -> Result<Sharding, Error> {
        let mut axes = manual.to_vec();
        axes.extend(self.placement.all_axes().into_iter().filter(|axis| !manual.contains(axis)));
        Ok(self.placement.mesh.sharding_over(vec![axes, Vec::new()])?)
    }

    /// The names of the tensors of [`Self::step_checksums`], of which those of the state are first.
    pub fn checked_names(&self) -> Result<Vec<String>, Error> {
        let TrainState { parameters, optimizer } = self.state()?;
        let names = parameters.into_iter().chain(optimizer).map(|state| state.tensor.name);
        Ok(names.chain(["the metrics".to_owned()]).collect())
    }
}

/// The checksums of tensors on one device: `u32[1, CHECKSUMS · tensors]`.
fn checksums(tensors: &[Tensor]) -> Result<Tensor> {
    let mut sums = Vec::new();
    for tensor in tensors {
        let bits = tensor.bitcast(DType::U32)?;
        let weighted = (&bits * &odd_weights(tensor.dims())?)?;
        for sum in [bits.sum_all()?, weighted.sum_all()?] {
            sums.push(sum.reshape(&[1, 1])?);
        }
    }
    concatenate(&sums.iter().collect::<Vec<_>>(), 1)
}

/// An odd number for each element: twice its position, plus one.
fn odd_weights(dims: &[usize]) -> Result<Tensor> {
    let mut weights = constant(&[], &[1_u32])?.broadcast_to(dims)?;
    let mut stride = 2_u32;
    for (dim, &size) in dims.iter().enumerate().rev() {
        let along = (iota(DType::U32, dims, dim)? * constant(&[], &[stride])?)?;
        weights = (weights + along)?;
        stride = stride.wrapping_mul(size as u32);
    }
    Ok(weights)
}
