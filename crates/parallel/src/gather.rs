//! Gathering the parameters of a unit, with the gradient that fully sharded training is named
//! for: what was gathered going forth is summed and scattered going back.

use crate::layout::Stored;
use fullshard_core::Layout;
use fullshard_graph::{DType, Group, Result, Tensor, concatenate, custom_vjp, full};

/// What goes over the wire when a unit is gathered and its gradients are scattered.
#[derive(Debug, Clone, PartialEq)]
pub struct Wire {
    /// The type that parameters are gathered in and computed with.
    pub compute: DType,
    /// The type that gradients are summed in.
    pub reduce: DType,
    /// Whether a unit is gathered in one exchange rather than in one a parameter.
    pub packed: bool,
    /// Gradients of a unit wait for each other until they are more than this many bytes.
    pub bucket: usize,
    /// What gradients are divided by before and after they are summed.
    pub divide: (f64, f64),
}

impl Wire {
    /// Which parameters of a unit are gathered together.
    pub(crate) fn gathers(&self, parameters: &[&Stored]) -> Vec<Vec<usize>> {
        let cut = cut_ones(parameters);
        match self.packed {
            true if !cut.is_empty() => vec![cut],
            _ => cut.into_iter().map(|i| vec![i]).collect(),
        }
    }

    /// Which gradients of a unit are scattered together, of so many layers of each at once.
    pub(crate) fn scatters(&self, parameters: &[&Stored], layers: &[usize]) -> Vec<Vec<usize>> {
        let (mut buckets, mut queued, mut bytes) = (Vec::new(), Vec::new(), 0);
        for i in cut_ones(parameters) {
            queued.push(i);
            bytes += layers[i] * parameters[i].padded_elements() * self.reduce.size();
            if bytes > self.bucket {
                buckets.push(std::mem::take(&mut queued));
                bytes = 0;
            }
        }
        buckets.extend((!queued.is_empty()).then_some(queued));
        buckets
    }

    /// The whole parameters of a unit, of which this device has the parts.
    ///
    /// Of parameters that are whole everywhere the gradients are summed over all devices.
    pub(crate) fn gather(
        &self,
        group: &Group,
        parameters: &[&Stored],
        parts: &[&Tensor],
    ) -> Result<Vec<Tensor>> {
        let wholes = |parts: Vec<Tensor>| self.bring_together(group, parameters, &parts);
        custom_vjp(
            parts,
            wholes,
            |parts| Ok((wholes(parts)?, Vec::new())),
            |_, gradients| self.reduce(group, parameters, &gradients.iter().collect::<Vec<_>>()),
        )
    }

    fn bring_together(
        &self,
        group: &Group,
        parameters: &[&Stored],
        parts: &[Tensor],
    ) -> Result<Vec<Tensor>> {
        let mut wholes =
            parts.iter().map(|part| part.convert(self.compute)).collect::<Result<Vec<_>>>()?;
        for bucket in self.gathers(parameters) {
            if let [i] = bucket[..] {
                wholes[i] = gather_one(group, parameters[i], &wholes[i])?;
                continue;
            }
            let rows = bucket.iter().map(|&i| parameters[i].to_row(&wholes[i]));
            let rows = rows.collect::<Result<Vec<_>>>()?;
            let packed = concatenate(&rows.iter().collect::<Vec<_>>(), 1)?;
            let gathered = group.all_gather(&packed, 0)?;
            let mut start = 0;
            for (&i, row) in bucket.iter().zip(&rows) {
                let rows = gathered.narrow(1, start, start + row.dims()[1])?;
                start += row.dims()[1];
                let lead = parts[i].rank() - parameters[i].part_dims().len();
                wholes[i] = parameters[i].whole_of_rows(&rows, &parts[i].dims()[..lead])?;
            }
        }
        Ok(wholes)
    }

    /// This device's parts of the mean over devices of whole gradients, in `f32`.
    pub(crate) fn reduce(
        &self,
        group: &Group,
        parameters: &[&Stored],
        gradients: &[&Tensor],
    ) -> Result<Vec<Tensor>> {
        let (before, after) = self.divide;
        let mut parts = Vec::new();
        for (stored, gradient) in parameters.iter().zip(gradients) {
            let gradient = divide(&gradient.convert(self.reduce)?, before)?;
            parts.push(match stored.layout {
                Layout::Replicated => group.sum(&gradient)?,
                Layout::Dim0 | Layout::Flat => gradient,
            });
        }
        let layers = parameters.iter().zip(gradients).map(|(stored, gradient)| {
            gradient.dims()[..gradient.rank() - stored.dims.len()].iter().product()
        });
        for bucket in self.scatters(parameters, &layers.collect::<Vec<_>>()) {
            self.scatter(group, parameters, &bucket, &mut parts)?;
        }
        let finish = |part: &Tensor| divide(&part.convert(DType::F32)?, after);
        parts.iter().map(finish).collect()
    }

    /// Makes the parts of a bucket of whole gradients.
    fn scatter(
        &self,
        group: &Group,
        parameters: &[&Stored],
        bucket: &[usize],
        gradients: &mut [Tensor],
    ) -> Result<()> {
        if let [i] = *bucket {
            gradients[i] = scatter_one(group, parameters[i], &gradients[i])?;
            return Ok(());
        }
        let rows = bucket.iter().map(|&i| parameters[i].to_rows(&gradients[i]));
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let packed = concatenate(&rows.iter().collect::<Vec<_>>(), 1)?;
        let scattered = group.reduce_scatter(&packed, 0)?;
        let mut start = 0;
        for (&i, rows) in bucket.iter().zip(&rows) {
            let row = scattered.narrow(1, start, start + rows.dims()[1])?;
            start += rows.dims()[1];
            let lead = gradients[i].rank() - parameters[i].dims.len();
            gradients[i] = parameters[i].part_of_row(&row, &gradients[i].dims()[..lead])?;
        }
        Ok(())
    }
}

/// Those of a unit's parameters that are cut.
fn cut_ones(parameters: &[&Stored]) -> Vec<usize> {
    (0..parameters.len()).filter(|&i| parameters[i].layout != Layout::Replicated).collect()
}

fn gather_one(group: &Group, stored: &Stored, part: &Tensor) -> Result<Tensor> {
    let lead = stored.lead(part);
    let tiled = tiled(stored, part)?;
    let gathered = group.all_gather(&tiled, lead)?;
    let mut dims = part.dims().to_vec();
    dims[lead] *= stored.parts;
    stored.trim(&gathered.reshape(&dims)?)
}

fn scatter_one(group: &Group, stored: &Stored, gradient: &Tensor) -> Result<Tensor> {
    let lead = gradient.rank() - stored.dims.len();
    let padded = stored.pad(gradient)?;
    let scattered = group.reduce_scatter(&tiled(stored, &padded)?, lead)?;
    let mut dims = padded.dims().to_vec();
    dims[lead] /= stored.parts;
    scattered.reshape(&dims)
}

/// A flat part as a matrix, which devices with tiled memory move without padding every number.
fn tiled(stored: &Stored, part: &Tensor) -> Result<Tensor> {
    if stored.layout != Layout::Flat {
        return Ok(part.clone());
    }
    let multiple = crate::layout::FLAT_MULTIPLE;
    let lead = part.rank() - 1;
    let rows = part.dims()[lead] / multiple;
    part.reshape(&[&part.dims()[..lead], &[rows, multiple]].concat())
}

fn divide(gradient: &Tensor, by: f64) -> Result<Tensor> {
    if by == 1.0 {
        return Ok(gradient.clone());
    }
    gradient / full(gradient.dtype(), &[], by)?
}
