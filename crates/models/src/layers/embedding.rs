//! Embeddings: a row of a table for each token or position.

use super::{dims, widened};
use crate::module::{Initializer, Module};
use crate::scope::Scope;
use fullshard_graph::{Error, Result, Tensor};

/// Declares the layer, whose rows begin with a standard deviation.
pub fn module(rows: usize, width: usize, deviation: f64) -> Module {
    let normal = Initializer::Normal { deviation };
    Module::new("Embedding").parameter("weight", &[rows, width], normal)
}

/// The rows that tokens pick in the layer of a name.
pub fn apply(scope: &Scope<'_>, name: &str, tokens: &Tensor) -> Result<Tensor> {
    scope.module(name, |scope| {
        let table = scope.parameter("weight")?;
        // Picked from a wide table, so that the gradient of a frequent token is summed in it.
        widened(&table)?.take(tokens)?.convert(table.dtype())
    })
}

/// The first `count` rows of the layer of a name: those of the positions of a sequence.
pub fn first_rows(scope: &Scope<'_>, name: &str, count: usize) -> Result<Tensor> {
    scope.module(name, |scope| {
        let table = scope.parameter("weight")?;
        let [rows, _] = dims("table", &table)?;
        if count > rows {
            let reason = format!("a sequence of {count} is longer than the {rows} positions");
            return Err(Error::new("embedding", reason));
        }
        table.narrow(0, 0, count)
    })
}
