//! Parquet files: only the text column is read, a thousand rows at a time.

use super::{Visit, text_column};
use crate::{Error, Result};
use parquet::basic::{ConvertedType, LogicalType};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;
use std::fmt::Display;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// Rows read at a time.
const ROWS: usize = 1000;

pub(super) fn read(
    path: &Path,
    file: File,
    column: &mut Option<String>,
    visit: &mut Visit,
) -> Result<ControlFlow<()>> {
    let size = file.metadata().map_err(Error::io("read", path))?.len();
    let reader = open(path, file)?;
    let metadata = reader.metadata().file_metadata();
    let rows = metadata.num_rows().max(1) as u64;
    let fields = metadata.schema_descr().root_schema().get_fields();
    let column = match column {
        Some(column) => column,
        None => {
            column.insert(text_column(fields.iter().map(|field| field.name())).unwrap_or_default())
        }
    };
    let index = text_index(metadata.schema_descr().columns(), column)
        .map_err(|reason| malformed(path, reason))?;
    let mut row = 0;
    for group in 0..reader.num_row_groups() {
        let group = reader.get_row_group(group).map_err(|error| malformed(path, error))?;
        let texts = group.get_column_reader(index).map_err(|error| malformed(path, error))?;
        let ColumnReader::ByteArrayColumnReader(mut texts) = texts else {
            return Err(malformed(path, format!("column `{column}` is not text")));
        };
        loop {
            let batch = next(&mut texts).map_err(|error| malformed(path, error))?;
            if batch.is_empty() {
                break;
            }
            for text in batch {
                row += 1;
                let problem = |problem| Error::NoText {
                    path: path.into(),
                    row,
                    column: column.clone(),
                    problem,
                };
                let text = text.ok_or_else(|| problem("is null"))?;
                let text = text.as_utf8().map_err(|_| problem("is not UTF-8"))?;
                if visit(text, size * row / rows).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// The number of rows that a file states.
pub(super) fn rows(path: &Path) -> Result<u64> {
    let file = File::open(path).map_err(Error::io("read", path))?;
    Ok(open(path, file)?.metadata().file_metadata().num_rows().max(0) as u64)
}

/// The index of a column of the root, if its values are text.
fn text_index(columns: &[Arc<ColumnDescriptor>], name: &str) -> std::result::Result<usize, String> {
    let index = columns.iter().position(|column| column.path().parts()[0] == name);
    let index = index.ok_or_else(|| format!("has no column `{name}`"))?;
    let column = &columns[index];
    let is_text = column.path().parts().len() == 1
        && column.max_rep_level() == 0
        && (matches!(column.logical_type_ref(), Some(LogicalType::String | LogicalType::Json))
            || matches!(column.converted_type(), ConvertedType::UTF8 | ConvertedType::JSON));
    if !is_text {
        let found = match column.path().parts().len() {
            1 => column.physical_type().to_string(),
            _ => "nested values".to_owned(),
        };
        return Err(format!("column `{name}` holds {found}, not text"));
    }
    Ok(index)
}

/// The next values of a column, `None` for nulls; empty at the end.
fn next(
    reader: &mut ColumnReaderImpl<ByteArrayType>,
) -> parquet::errors::Result<Vec<Option<ByteArray>>> {
    let (mut levels, mut values) = (Vec::new(), Vec::new());
    let (records, _, _) = reader.read_records(ROWS, Some(&mut levels), None, &mut values)?;
    let mut values = values.into_iter();
    // A required column has no levels, and then a value for every row.
    Ok(match levels.is_empty() {
        true => values.map(Some).collect(),
        false => {
            levels.iter().take(records).map(|&level| (level > 0).then(|| values.next())?).collect()
        }
    })
}

fn open(path: &Path, file: File) -> Result<SerializedFileReader<File>> {
    SerializedFileReader::new(file).map_err(|error| malformed(path, error))
}

fn malformed(path: &Path, reason: impl Display) -> Error {
    Error::Malformed { path: path.into(), reason: reason.to_string() }
}
