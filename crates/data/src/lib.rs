//! Text in, batches of tokens out.
//!
//! A [`Source`] is text as examples, read as Hugging Face's `datasets` reads it: local files, or
//! files that [`hub::Hub`] downloads. A [`Tokenizer`] turns examples into tokens. A [`Corpus`] is
//! the tokens of a source, grouped into blocks and cached in a memory-mapped file, so that text is
//! tokenized once. An [`Order`] is an order of blocks, and a [`Loader`] prefetches batches.
//! [`demo`] generates text of known entropy.
#![deny(unsafe_code)]

mod corpus;
pub mod demo;
mod error;
mod grouping;
pub mod hub;
mod loader;
mod order;
mod source;
mod tokenizer;

pub use corpus::{Corpus, Part, Preparation, Progress};
pub use error::{Error, Result};
pub use grouping::Grouping;
pub use loader::{Batch, BatchOrigin, Batches, Loader};
pub use order::Order;
pub use source::{Kind, Source};
pub use tokenizer::Tokenizer;
