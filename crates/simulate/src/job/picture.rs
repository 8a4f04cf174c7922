//! The time of a job as a bar of its parts, as an SVG file.

use super::Simulated;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 208.0;
const LEFT: f64 = 24.0;
const BAR: f64 = 36.0;

/// A color for each part.
const COLORS: [&str; 9] = [
    "#2563eb", "#db2777", "#d97706", "#ca8a04", "#0891b2", "#7c3aed", "#dc2626", "#059669",
    "#94a3b8",
];

/// The mean time of a simulated job by what it was spent on: all of it, and what is not useful.
pub fn picture(simulated: &Simulated) -> String {
    let job = &simulated.job;
    let title = format!(
        "Goodput {:.1} %: {} hosts, a failure every {:.1} h",
        100.0 * simulated.goodput.mean,
        job.hosts,
        job.mtbf() / 3600.0
    );
    let parts = simulated.parts.named();
    let parts: Vec<(&str, f64, &str)> =
        parts.iter().zip(COLORS).map(|(&(name, seconds), color)| (name, seconds, color)).collect();
    let total = simulated.parts.total();
    let style = "text { font-family: -apple-system, 'Segoe UI', Inter, Helvetica, Arial, \
                 sans-serif; font-size: 12.5px; fill: #475569; } .title { font-size: 18px; \
                 font-weight: 600; fill: #0f172a; }";
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\">\n<title>{title}</title>\n\
         <style>{style}</style>\n\
         <rect x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"10\" fill=\"#ffffff\" \
         stroke=\"#e2e8f0\"/>\n\
         <text class=\"title\" x=\"{LEFT}\" y=\"34\">{title}</text>\n{}{}</svg>\n",
        WIDTH - 1.0,
        HEIGHT - 1.0,
        bar(&parts, total),
        legend(&parts, total)
    )
}

fn bar(parts: &[(&str, f64, &str)], total: f64) -> String {
    let scale = (WIDTH - 2.0 * LEFT) / total.max(f64::MIN_POSITIVE);
    let mut from = LEFT;
    let mut drawn = String::new();
    for (name, seconds, color) in parts.iter().filter(|(_, seconds, _)| *seconds > 0.0) {
        let width = seconds * scale;
        drawn += &format!(
            "<rect class=\"part\" x=\"{from:.2}\" y=\"54\" width=\"{width:.2}\" height=\"{BAR}\" \
             fill=\"{color}\"><title>{name}: {:.2} %</title></rect>\n",
            100.0 * seconds / total
        );
        from += width;
    }
    drawn
}

/// The parts that there are, four in a row.
fn legend(parts: &[(&str, f64, &str)], total: f64) -> String {
    let shown = parts.iter().filter(|(_, seconds, _)| *seconds > 0.0).enumerate();
    let item = |(index, (name, seconds, color)): (usize, &(&str, f64, &str))| {
        let x = LEFT + 203.0 * (index % 4) as f64;
        let y = 124.0 + 30.0 * (index / 4) as f64;
        format!(
            "<rect x=\"{x}\" y=\"{}\" width=\"11\" height=\"11\" rx=\"3\" fill=\"{color}\"/>\n\
             <text x=\"{}\" y=\"{y}\">{name} {:.2} %</text>\n",
            y - 10.0,
            x + 17.0,
            100.0 * seconds / total
        )
    };
    shown.map(item).collect()
}
