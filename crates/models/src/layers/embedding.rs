//! Embeddings: a row of a table for each token or position.

use super::{DEFAULT_STD, widened};
use crate::module::{Initializer, Parameter};
use crate::scope::Scope;
use fullshard_graph::{Comparison, Error, Result, Tensor, full, select};

/// A table with a row for each token or position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Embedding {
    rows: usize,
    width: usize,
    std: f64,
    padding: Option<usize>,
}

impl Embedding {
    /// A table of rows of a width.
    pub fn new(rows: usize, width: usize) -> Embedding {
        Embedding { rows, width, std: DEFAULT_STD, padding: None }
    }

    /// With rows that begin with a standard deviation.
    pub fn std(self, std: f64) -> Embedding {
        Embedding { std, ..self }
    }

    /// With a token, if there is one, whose row begins at zero. It has no gradient where it is
    /// looked up, though it may have one as a row of a tied head.
    pub fn padding(self, token: Option<usize>) -> Embedding {
        Embedding { padding: token, ..self }
    }

    /// The rows that tokens pick in the layer of a name.
    pub fn apply(&self, nn: &Scope<'_>, name: &str, tokens: &Tensor) -> Result<Tensor> {
        nn.module(name, CLASS, |nn| {
            let table = self.table(nn)?;
            // Picked from a wide table, so that the gradient of a frequent token is summed in it.
            let picked = widened(&table)?.take(tokens)?;
            let picked = match self.padding {
                Some(padding) => without_gradient_at(padding, tokens, &picked)?,
                None => picked,
            };
            picked.convert(table.dtype())
        })
    }

    /// The first `count` rows of the layer of a name: those of the positions of a sequence.
    pub fn first_rows(&self, nn: &Scope<'_>, name: &str, count: usize) -> Result<Tensor> {
        nn.module(name, CLASS, |nn| {
            let (table, rows) = (self.table(nn)?, self.rows);
            if count > rows {
                let reason = format!("a sequence of {count} is longer than the {rows} positions");
                return Err(Error::new("embedding", reason));
            }
            table.narrow(0, 0, count)
        })
    }

    fn table(&self, nn: &Scope<'_>) -> Result<Tensor> {
        let normal = Initializer::normal(self.std);
        let table = Parameter::new("weight", &[self.rows, self.width], normal);
        nn.get(&Parameter { zero_row: self.padding, ..table })
    }
}

const CLASS: &str = "Embedding";

/// The rows picked by tokens, those of one token without a gradient.
fn without_gradient_at(token: usize, tokens: &Tensor, rows: &Tensor) -> Result<Tensor> {
    let token = full(tokens.dtype(), &[], token as f64)?;
    let here = tokens.compare(Comparison::Equal, &token)?.expand(tokens.rank())?;
    select(&here, &rows.stop_gradient()?, rows)
}
