//! Text in, batches of tokens out.
//!
//! A [`Source`] is text as examples, read as Hugging Face's `datasets` reads it: local files, or
//! files of the hub that [`hub::Hub`] brings here. A [`Tokenizer`] turns examples into tokens. A
//! [`Corpus`] is the tokens of a source, grouped into blocks and kept in a file that is mapped into
//! memory, so that text is tokenised once. An [`Order`] says which block comes when, and a
//! [`Loader`] prepares batches ahead of whoever trains. [`demo`] makes text whose entropy is known.
#![deny(unsafe_code)]

mod corpus;
pub mod demo;
mod error;
mod grouping;
pub mod hub;
mod loader;
mod order;
mod random;
mod source;
mod tokenizer;

pub use corpus::{Corpus, Part, Preparation, Progress};
pub use error::{Error, Result};
pub use grouping::Grouping;
pub use loader::{Batch, Batches, Loader};
pub use order::Order;
pub use source::{Kind, Source};
pub use tokenizer::Tokenizer;
