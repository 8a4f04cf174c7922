//! Prints the FSDP units of a step as a table.

use crate::error::Result;
use crate::format;
use fullshard_parallel::WrapPlan;
use fullshard_parallel::wrap::{Column, UnitGroup};
use fullshard_step::{StepSpec, UnitRow};

/// The units with their bytes per device, sharded and all-gathered.
pub fn table(spec: &StepSpec) -> Result<String> {
    let options = &spec.placement.options;
    let plan = WrapPlan::new(&spec.model.tree(), &options.config.wrap, &options.frozen)
        .map_err(fullshard_parallel::Error::from)?;
    let units = spec.unit_rows();
    let cell = |group: &UnitGroup<'_>, bytes: fn(&UnitRow) -> u64| {
        let path = &group.units[0].path;
        let row = units.iter().find(|row| row.path == *path || row.path == any_layer(path));
        let each = if group.units.len() > 1 { " each" } else { "" };
        row.map_or("?".into(), |row| format!("{}{each}", format::bytes(bytes(row))))
    };
    let sharded = |group: &UnitGroup<'_>| cell(group, |row| row.shard_bytes);
    let gathered = |group: &UnitGroup<'_>| cell(group, |row| row.unsharded_bytes);
    Ok(plan.table(&[
        Column { heading: "per device", cell: &sharded },
        Column { heading: "gathered", cell: &gathered },
    ]))
}

/// A path with `*` for the layer index, as in units of scanned layers.
pub fn any_layer(path: &str) -> String {
    let segment = |segment| match segment {
        number if str::parse::<usize>(number).is_ok() => "*",
        name => name,
    };
    path.split('.').map(segment).collect::<Vec<_>>().join(".")
}
