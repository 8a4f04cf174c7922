//! The plan of a step for people: what is sharded how, and what it should need.

use crate::error::Result;
use crate::format;
use crate::step::{StepFlags, compute_name, dtype_name};
use fullshard_parallel::WrapPlan;
use fullshard_parallel::wrap::{Column, UnitGroup};
use fullshard_plan::MemoryEstimate;
use fullshard_step::{StepSpec, UnitRow};

/// Prints what is computed and how it is sharded.
pub fn print(spec: &StepSpec, step: &StepFlags) -> Result<()> {
    let placement = &spec.placement;
    println!(
        "{} of {} parameters on {} ({}), {}",
        spec.model.tree().class,
        format::grouped(spec.parameter_count()),
        format::count(placement.devices(), "device"),
        step.target.kind().name(),
        placement.options.strategy.name(),
    );
    println!(
        "computing in {} with gradients in {}, {}, remat {}",
        compute_name(spec),
        dtype_name(placement.wire.reduce),
        step.optim,
        placement.remat.name(),
    );
    println!("\n{}\n", table(spec)?);
    Ok(())
}

/// Prints what a step should need on each device.
pub fn print_estimate(estimate: &MemoryEstimate) {
    println!("{:<20} {} a device", "estimated memory", format::bytes(estimate.total));
    for part in estimate.parts() {
        println!("  {:<18} {}", part.what, format::bytes(part.bytes));
    }
}

/// The units with what they take on a device, at rest and gathered.
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
    let parts = |group: &UnitGroup<'_>| cell(group, |row| row.part_bytes);
    let wholes = |group: &UnitGroup<'_>| cell(group, |row| row.whole_bytes);
    Ok(plan.table(&[
        Column { heading: "a device", cell: &parts },
        Column { heading: "gathered", cell: &wholes },
    ]))
}

/// A path with a `*` for the layer, as the units of a loop have it.
pub fn any_layer(path: &str) -> String {
    let segment = |segment| match segment {
        number if str::parse::<usize>(number).is_ok() => "*",
        name => name,
    };
    path.split('.').map(segment).collect::<Vec<_>>().join(".")
}
