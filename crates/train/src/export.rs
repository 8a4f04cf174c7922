//! Writes the parameters of a runner in Hugging Face's format, one layer at a time.

use crate::error::{Error, mismatch};
use crate::runner::Runner;
use crate::weights::model_tensors;
use fullshard_checkpoint::{ExportOptions, Exported, export};
use std::collections::VecDeque;
use std::path::Path;

impl Runner<'_> {
    /// Writes the parameters into a folder, in Hugging Face's format.
    pub fn export(&self, folder: &Path, options: &ExportOptions) -> Result<Exported, Error> {
        let spec = self.spec();
        let mut parameters = spec.placement.parameters.iter();
        // The remaining layers of a stack, in order.
        let mut layers: VecDeque<Vec<f32>> = VecDeque::new();
        let mut next = |name: &str| -> Result<Vec<f32>, Error> {
            if layers.is_empty()
                && let Some(param) = parameters.next()
            {
                let values = self.parameters().get(&param.name)?;
                let length = values.len() / param.stack.unwrap_or(1);
                layers = values.chunks(length.max(1)).map(<[f32]>::to_vec).collect();
            }
            layers.pop_front().ok_or_else(|| mismatch(name, "no parameter", "a parameter"))
        };
        Ok(export(folder, &model_tensors(spec), &mut next, options)?)
    }
}
