//! `--breakdown`: prints where the time of a step goes.

use fullshard::format;
use fullshard_plan::{Breakdown, KernelTime, KindTime, ModuleShare};

/// Number of printed kernels; JSON has all.
const KERNELS: usize = 30;

/// The breakdown as text, compared with the step time measured without a profile.
pub fn text(breakdown: &Breakdown, measured: f64) -> String {
    let Breakdown { device, steps, span, busy, idle, overlapped, .. } = breakdown;
    let mut lines = vec![
        format!("breakdown of a step, from a profile of {steps} further steps ({device})"),
        format!(
            "  {} from first to last kernel, {:.1} % of the measured step; busy {}, idle {}",
            format::seconds(*span),
            100.0 * span / measured,
            format::seconds(*busy),
            format::seconds(*idle),
        ),
    ];
    if *overlapped > 0.001 * busy {
        lines.push(format!("  {} of kernels overlapped with others", format::seconds(*overlapped)));
    }
    if breakdown.unknown > 0.001 * busy {
        let unknown = format::seconds(breakdown.unknown);
        lines.push(format!("  {unknown} of kernels match no instruction"));
    }
    lines.extend(kinds(&breakdown.kinds));
    lines.extend(modules(&breakdown.modules, *span));
    lines.extend(kernels(&breakdown.kernels));
    lines.join("\n")
}

fn kinds(kinds: &[KindTime]) -> Vec<String> {
    let heading = format!("\n  {:<36} {:>9} {:>8} {:>9}", "kind", "ms", "share", "kernels");
    let row = |row: &KindTime| {
        let (name, ms, share) = (row.kind.name(), 1e3 * row.seconds, 100.0 * row.share);
        format!("  {name:<36} {ms:>9.2} {share:>7.1}% {:>9.0}", row.launches)
    };
    [heading].into_iter().chain(kinds.iter().map(row)).collect()
}

/// Modules, with forward and backward in one row.
fn modules(modules: &[ModuleShare], span: f64) -> Vec<String> {
    let mut sums: Vec<(&str, [f64; 2])> = Vec::new();
    for row in modules {
        let place = sums.iter().position(|known| known.0 == row.module);
        let place = place.unwrap_or_else(|| {
            sums.push((&row.module, [0.0; 2]));
            sums.len() - 1
        });
        sums[place].1[usize::from(row.backward)] += row.seconds;
    }
    sums.sort_by(|a, b| b.1.iter().sum::<f64>().total_cmp(&a.1.iter().sum()));
    let heading =
        format!("\n  {:<36} {:>9} {:>9} {:>7}", "module (ms)", "forward", "backward", "share");
    let row = |(module, [forward, backward]): (&str, [f64; 2])| {
        let share = 100.0 * (forward + backward) / span;
        let (forward, backward) = (1e3 * forward, 1e3 * backward);
        format!("  {:<36} {forward:>9.2} {backward:>9.2} {share:>6.1}%", or_none(module))
    };
    [heading].into_iter().chain(sums.into_iter().map(row)).collect()
}

fn kernels(kernels: &[KernelTime]) -> Vec<String> {
    let mut lines = vec![format!(
        "\n  {:>8} {:>6} {:>7} {:>6} {:>7} {:>8}  kernel and instruction, module",
        "ms", "share", "kernels", "GB/s", "of peak", "TFLOP/s"
    )];
    lines.extend(kernels.iter().take(KERNELS).map(kernel));
    let left: f64 = kernels.iter().skip(KERNELS).map(|row| row.seconds).sum();
    if left > 0.0 {
        let others = kernels.len() - KERNELS;
        lines.push(format!("  {:>8.2} in {others} others, see --json", 1e3 * left));
    }
    lines
}

fn kernel(row: &KernelTime) -> String {
    let figure = |value: Option<f64>, unit: &str| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}{unit}"))
    };
    format!(
        "  {:>8.2} {:>5.1}% {:>7.0} {:>6} {:>7} {:>8}  {}, {}{}",
        1e3 * row.seconds,
        100.0 * row.share,
        row.launches,
        figure(row.bytes_per_second.map(|rate| rate / 1e9), ""),
        figure(row.bandwidth_share.map(|share| 100.0 * share), "%"),
        figure(row.flops.map(|rate| rate / 1e12), ""),
        name(row),
        or_none(&row.module),
        if row.backward { " backward" } else { "" },
    )
}

/// The name of a kernel with its instruction; XLA's own kernels are named after it.
fn name(row: &KernelTime) -> String {
    match &row.op {
        Some(op) if op.starts_with(&row.name) => op.clone(),
        Some(op) => format!("{}, {op}", row.name),
        None => row.name.clone(),
    }
}

/// The path of a module.
fn or_none(module: &str) -> &str {
    if module.is_empty() { "(no module)" } else { module }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullshard_models::from_json;
    use fullshard_pjrt::hlo::Module;
    use fullshard_pjrt::read_profile;
    use fullshard_step::Chip;

    const PROFILE: &[u8] = include_bytes!("../../../../plan/tests/data/breakdown.xplane.pb");
    const PROGRAM: &[u8] = include_bytes!("../../../../plan/tests/data/breakdown.hlo.pb");
    const GPT2: &str = include_str!("../../../../../examples/configs/gpt2_config.json");

    #[test]
    fn prints_the_recorded_profile() {
        let program = Module::decode("hlo_with_config", PROGRAM).unwrap();
        let (devices, model) = (read_profile(PROFILE).unwrap(), from_json(GPT2).unwrap());
        let chip = Chip::named("h200");
        let breakdown = Breakdown::new(&devices, &program, model.as_ref(), 3, chip).unwrap();
        let text = text(&breakdown, breakdown.span);
        for line in [
            "  49.14 ms from first to last kernel, 100.0 % of the measured step; busy 48.88 ms, \
             idle 262.5 µs",
            "  matmuls                                  34.50    70.2%        31",
            "  transformer.h.*.mlp.c_fc                  1.83      4.17   12.2%",
            "      0.45   0.9%       1   3570     74%        -  loop_convert_tanh_fusion.17, \
             transformer.h.*.mlp",
            "      1.65   3.4%       1    351      7%      750  \
             nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN, custom-call.1346, \
             transformer.h.*.mlp.c_proj backward",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\nis not in\n{text}");
        }
    }
}
