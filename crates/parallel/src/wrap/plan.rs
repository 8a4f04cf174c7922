//! The units of a model as a table, identical ones in one row.

use super::error::WrapError;
use super::frozen::frozen;
use super::paths::{distinct, numbered};
use super::tensors::tensors;
use super::{Unit, units};
use crate::config::WrapPolicy;
use fullshard_models::Module;
use std::fmt::{self, Display};

/// How a model is wrapped: its units, its tied weights, what is frozen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrapPlan {
    /// The units, the root first.
    pub units: Vec<Unit>,
    /// The tied weights.
    pub tied: Vec<Tied>,
    /// The full names of parameters that are not trained.
    pub frozen: Vec<String>,
    /// The number of elements that are not trained.
    pub frozen_elements: usize,
}

/// A parameter that is the same tensor as another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tied {
    /// Its full name.
    pub name: String,
    /// The full name of the other.
    pub to: String,
    /// The path of the unit that owns the tensor.
    pub unit: String,
}

/// Units that differ only in the numbers in their paths.
#[derive(Debug, Clone)]
pub struct UnitGroup<'a> {
    /// The units, at least one, in the order of the tree.
    pub units: Vec<&'a Unit>,
}

/// A column that is added to the table, such as the bytes per device.
pub struct Column<'a> {
    /// Its heading.
    pub heading: &'a str,
    /// Its cell in each row.
    pub cell: &'a dyn Fn(&UnitGroup<'_>) -> String,
}

impl WrapPlan {
    /// Plans the units of a model and the parameters that patterns freeze.
    pub fn new(
        tree: &Module,
        policy: &WrapPolicy,
        freeze: &[String],
    ) -> Result<WrapPlan, WrapError> {
        let units = units(tree, policy)?;
        let frozen = frozen(tree, freeze)?;
        let mut tied = Vec::new();
        let mut frozen_elements = 0;
        for tensor in tensors(tree)? {
            if frozen.contains(&tensor.name) {
                frozen_elements += tensor.elements;
            }
            let owner = units.iter().find(|unit| unit.parameters.contains(&tensor.name));
            let unit = owner.map(|unit| unit.path.clone()).unwrap_or_default();
            let tie = |name| Tied { name, to: tensor.name.clone(), unit: unit.clone() };
            tied.extend(tensor.tied.into_iter().map(tie));
        }
        Ok(WrapPlan { units, tied, frozen, frozen_elements })
    }

    /// The number of elements of the model.
    pub fn elements(&self) -> usize {
        self.units.iter().map(|unit| unit.elements).sum()
    }

    /// The units, identical ones grouped, in the order of their first unit.
    pub fn groups(&self) -> Vec<UnitGroup<'_>> {
        let mut groups: Vec<UnitGroup<'_>> = Vec::new();
        for unit in &self.units {
            match groups.iter_mut().find(|group| is_same_kind(group.units[0], unit)) {
                Some(group) => group.units.push(unit),
                None => groups.push(UnitGroup { units: vec![unit] }),
            }
        }
        groups
    }

    /// The table, with the caller's columns added on the right.
    pub fn table(&self, columns: &[Column<'_>]) -> String {
        let headings = ["unit", "class", "units", "parameters", "elements"];
        let headings = headings.into_iter().chain(columns.iter().map(|column| column.heading));
        let mut rows = vec![headings.map(str::to_owned).collect::<Vec<String>>()];
        for group in self.groups() {
            let mut row = group.cells();
            row.extend(columns.iter().map(|column| (column.cell)(&group)));
            rows.push(row);
        }
        let mut lines = aligned(&rows);
        lines.extend(self.notes());
        lines.join("\n")
    }

    /// The lines below the table: totals, tied and frozen parameters.
    fn notes(&self) -> Vec<String> {
        let parameters: usize = self.units.iter().map(|unit| unit.parameters.len()).sum();
        let units = pluralize(self.units.len(), "unit");
        let elements = count(self.elements());
        let mut notes =
            vec![format!("total: {units}, {}, {elements}", pluralize(parameters, "parameter"))];
        notes.extend(self.tied.iter().map(|Tied { name, to, unit }| {
            format!("tied: {name} is {to}, owned by {}", display_path(unit))
        }));
        if !self.frozen.is_empty() {
            let parameters = pluralize(self.frozen.len(), "parameter");
            let names = distinct(self.frozen.iter().map(|name| numbered(name))).join(", ");
            let elements = count(self.frozen_elements);
            notes.push(format!("frozen: {parameters}, {elements}: {names}"));
        }
        notes
    }
}

impl Display for WrapPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.table(&[]))
    }
}

impl UnitGroup<'_> {
    /// The cells of its row, without added columns.
    fn cells(&self) -> Vec<String> {
        let first = self.units[0];
        let (path, elements) = match self.units.as_slice() {
            [_, .., last] => (
                format!("{} … {}", first.path, last.path),
                format!("{} each", count(first.elements)),
            ),
            _ => (display_path(&first.path).to_owned(), count(first.elements)),
        };
        let units = format!("×{}", self.units.len());
        let parameters = first.parameters.len().to_string();
        vec![path, first.class.to_owned(), units, parameters, elements]
    }
}

/// Whether two units are identical except for the numbers in their paths.
fn is_same_kind(one: &Unit, other: &Unit) -> bool {
    let names = |unit: &Unit| unit.parameters.iter().map(|name| numbered(name)).collect::<Vec<_>>();
    one.class == other.class
        && one.elements == other.elements
        && numbered(&one.path) == numbered(&other.path)
        && names(one) == names(other)
}

fn display_path(path: &str) -> &str {
    if path.is_empty() { "(root)" } else { path }
}

/// "1 unit", "2 units".
fn pluralize(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A number of elements in short form: `113.3 M`.
fn count(elements: usize) -> String {
    let mut value = elements as f64;
    let mut unit = ' ';
    for larger in ['K', 'M', 'B', 'T'] {
        // What would round to 1000 uses the next unit.
        if value >= 999.95 {
            value /= 1000.0;
            unit = larger;
        }
    }
    if unit == ' ' { elements.to_string() } else { format!("{value:.1} {unit}") }
}

/// Rows as lines with aligned columns: the first two to the left, numbers to the right.
pub(crate) fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    const TEXTS: usize = 2;
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let cell = |(column, text): (usize, &String)| match widths[column] {
        width if column < TEXTS => format!("{text:<width$}"),
        width => format!("{text:>width$}"),
    };
    let line = |row: &Vec<String>| row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ");
    rows.iter().map(line).collect()
}
