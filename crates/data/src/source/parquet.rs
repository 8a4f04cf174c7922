//! Parquet files: only the column with the text is read, a thousand rows at a time.

use super::{Visit, text_column};
use crate::{Error, Result};
use arrow_array::{Array, StringArray};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use std::fmt::Display;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;

pub(super) fn read(
    path: &Path,
    file: File,
    column: &mut Option<String>,
    visit: &mut Visit,
) -> Result<ControlFlow<()>> {
    let size = file.metadata().map_err(Error::io("read", path))?.len();
    let builder = open(path, file)?;
    let rows = builder.metadata().file_metadata().num_rows().max(1) as u64;
    let fields = builder.parquet_schema().root_schema().get_fields();
    let column = match column {
        Some(column) => column,
        None => {
            column.insert(text_column(fields.iter().map(|field| field.name())).unwrap_or_default())
        }
    };
    let Some(index) = fields.iter().position(|field| field.name() == column) else {
        return Err(malformed(path, format!("has no column `{column}`")));
    };
    let mask = ProjectionMask::roots(builder.parquet_schema(), [index]);
    let batches = builder.with_projection(mask).with_batch_size(1000).build();
    let mut row = 0;
    for batch in batches.map_err(|error| malformed(path, error))? {
        let batch = batch.map_err(|error| malformed(path, error))?;
        let values = batch.column(0);
        let Some(texts) = values.as_any().downcast_ref::<StringArray>() else {
            let reason = format!("column `{column}` holds {}, not text", values.data_type());
            return Err(malformed(path, reason));
        };
        for text in texts {
            row += 1;
            let text = text.ok_or_else(|| Error::NoText {
                path: path.into(),
                row,
                column: column.clone(),
                problem: "is null",
            })?;
            if visit(text, size * row / rows).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// The number of rows that a file says it has.
pub(super) fn rows(path: &Path) -> Result<u64> {
    let file = File::open(path).map_err(Error::io("read", path))?;
    Ok(open(path, file)?.metadata().file_metadata().num_rows().max(0) as u64)
}

fn open(path: &Path, file: File) -> Result<ParquetRecordBatchReaderBuilder<File>> {
    // What Arrow once said of the columns is left aside, so that text comes as one type only.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    ParquetRecordBatchReaderBuilder::try_new_with_options(file, options)
        .map_err(|error| malformed(path, error))
}

fn malformed(path: &Path, reason: impl Display) -> Error {
    Error::Malformed { path: path.into(), reason: reason.to_string() }
}
