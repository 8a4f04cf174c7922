//! Checks that a checkpoint is of this run, and reads its state into shards.

use crate::error::{Error, mismatch};
use fullshard_checkpoint::Weights;
use fullshard_checkpoint::sharded::{Checkpoint, TensorRecord};
use fullshard_step::{Ordered, SavedPart, SavedTensors, StateTensor, StepSpec};
use std::collections::BTreeMap;

/// Checks that a checkpoint has the state of a spec: the same parameters and, to train on, the
/// same optimizer's slots. The mesh, layouts and scanned layers may differ.
pub fn check_checkpoint(spec: &StepSpec, checkpoint: &Checkpoint) -> Result<(), Error> {
    let manifest = checkpoint.manifest();
    let other =
        |reason: String| Error::OtherCheckpoint { path: checkpoint.folder().to_owned(), reason };
    let name = spec.optimizer.name();
    match manifest.optimizer.as_deref() {
        Some(saved) if saved == name => {}
        Some(saved) => {
            return Err(other(format!(
                "it has the state of {saved}, but the optimizer is {name}: pass --optim {saved}, \
                 or initialize from its model with --model_name_or_path"
            )));
        }
        None => {
            return Err(other(
                "it was saved with --save_only_model, without the optimizer's state: initialize \
                 from its model with --model_name_or_path"
                    .into(),
            ));
        }
    }
    let mut expected = BTreeMap::new();
    for tensor in spec.state()?.flatten() {
        let saved = spec.saved(&tensor);
        expected.extend(saved.names.iter().map(|name| (name.clone(), saved.dims.clone())));
    }
    compare(&expected, &manifest.tensors).map_or(Ok(()), |reason| {
        Err(other(format!("{reason}: pass the model and the flags that it was saved with")))
    })
}

/// What differs between the tensors of a run and those of a checkpoint, if anything.
fn compare(
    expected: &BTreeMap<String, Vec<usize>>,
    found: &BTreeMap<String, TensorRecord>,
) -> Option<String> {
    for (name, dims) in expected {
        match found.get(name) {
            None => return Some(format!("it has no `{name}`")),
            Some(record) if record.dims != *dims => {
                let found = &record.dims;
                return Some(format!("`{name}` is {found:?} in it, but {dims:?} in the model"));
            }
            Some(_) => {}
        }
    }
    let extra = found.keys().find(|name| !expected.contains_key(*name));
    extra.map(|name| format!("it has `{name}`, which the run does not"))
}

/// A reader of the state in a checkpoint.
pub(crate) fn read_checkpoint(
    checkpoint: &Checkpoint,
) -> impl Fn(&SavedTensors, &SavedPart, &mut [u8]) -> Result<(), Error> + Sync {
    |saved, part, out| {
        let name = &saved.names[part.tensor];
        Ok(checkpoint.read_part(name, &part.part, out)?)
    }
}

/// A reader of weights; the optimizer's slots stay zero.
pub(crate) fn read_weights(
    weights: &Weights,
) -> impl Fn(&SavedTensors, &SavedPart, &mut [u8]) -> Result<(), Error> + Sync {
    |saved, part, out| {
        if saved.slot.is_some() {
            return Ok(());
        }
        let name = &saved.names[part.tensor];
        // Allocators align bytes of this many as numbers.
        let values = bytemuck::try_cast_slice_mut(out)
            .map_err(|error| mismatch(name, &error.to_string(), "aligned memory"))?;
        Ok(weights.read_part_f32(name, &part.part, values)?)
    }
}

/// The saved tensors of a list of the state.
pub(crate) fn saved_tensors(spec: &StepSpec, tensors: &[StateTensor]) -> Vec<SavedTensors> {
    tensors.iter().map(|tensor| spec.saved(tensor)).collect()
}
