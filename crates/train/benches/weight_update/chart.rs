//! The figures as an SVG file: a panel per optimizer and quantity, in each the bars of the
//! replicated and of the sharded update for every number of devices.

use crate::{Row, median};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 40.0;
/// The size of a panel, and the distance from one to the next.
const PANEL: (f64, f64) = (370.0, 130.0);
const NEXT: (f64, f64) = (410.0, 200.0);
const TOP: f64 = 118.0;
const BAR: f64 = 30.0;

const STYLE: &str = "\
text { font-family: -apple-system, 'Segoe UI', Inter, Helvetica, Arial, sans-serif; fill: #475569; }
.card { fill: #ffffff; stroke: #e2e8f0; }
.title { font-size: 18px; font-weight: 600; fill: #0f172a; }
.text { font-size: 12.5px; }
.number { font-size: 12px; }
.axis { stroke: #94a3b8; }
.replicated { fill: #94a3b8; }
.sharded { fill: #2563eb; }
@media (prefers-color-scheme: dark) {
text { fill: #cbd5e1; }
.card { fill: #0f172a; stroke: #334155; }
.title { fill: #f1f5f9; }
.replicated { fill: #64748b; }
.sharded { fill: #60a5fa; }
}
";

/// A quantity of a panel: its name, and the sharded one over the replicated one.
type Quantity = (&'static str, fn(&Row) -> f64);

const QUANTITIES: [Quantity; 2] = [
    ("update bytes per device", |row| {
        row.sharded.update_bytes as f64 / row.replicated.update_bytes as f64
    }),
    ("step time", |row| median(&row.ratios)),
];

/// Draws rows, of which those of an optimizer follow each other.
pub(crate) fn draw(rows: &[Row]) -> String {
    let title = "Weight-update sharding, relative to a replicated update";
    let mut parts = vec![
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">"#
        ),
        format!("<title>{title}</title>\n<style>\n{STYLE}</style>"),
        format!(
            r#"<rect class="card" x="0.5" y="0.5" width="{}" height="{}" rx="10"/>"#,
            WIDTH - 1.0,
            HEIGHT - 1.0
        ),
        text("title", LEFT, 36.0, "start", title),
    ];
    legend(&mut parts);
    for (down, rows) in rows.chunk_by(|a, b| a.optimizer == b.optimizer).enumerate() {
        for (across, quantity) in QUANTITIES.iter().enumerate() {
            let x = LEFT + across as f64 * NEXT.0;
            let y = TOP + down as f64 * NEXT.1;
            panel(rows, quantity, x, y, &mut parts);
        }
    }
    let note = "GPT-2 of 4 million parameters, one sequence of 8 tokens per device. All virtual \
                CPU devices share two cores.";
    parts.push(text("text", LEFT, HEIGHT - 18.0, "start", note));
    parts.push("</svg>\n".to_owned());
    parts.join("\n")
}

fn legend(parts: &mut Vec<String>) {
    for (class, label, x) in [
        ("replicated", "replicated (no_shard)", LEFT),
        ("sharded", "sharded (weight_update)", LEFT + 180.0),
    ] {
        parts.push(bar(class, x, 62.0, 12.0, 12.0));
        parts.push(text("text", x + 20.0, 62.0, "start", label));
    }
}

fn panel(rows: &[Row], (name, ratio): &Quantity, x: f64, y: f64, parts: &mut Vec<String>) {
    let heading = format!("{}: {name}", rows[0].optimizer);
    parts.push(text("text", x, y - 20.0, "start", &heading));
    let ratios: Vec<f64> = rows.iter().map(ratio).collect();
    let highest = ratios.iter().copied().fold(1.0, f64::max);
    let bottom = y + PANEL.1;
    let group = PANEL.0 / rows.len() as f64;
    for (i, (row, ratio)) in rows.iter().zip(ratios).enumerate() {
        let center = x + (i as f64 + 0.5) * group;
        let height = |ratio: f64| ratio / highest * (PANEL.1 - 14.0);
        parts.push(bar("replicated", center - BAR - 1.0, bottom, BAR, height(1.0)));
        parts.push(bar("sharded", center + 1.0, bottom, BAR, height(ratio)));
        let label = format!("{ratio:.2}");
        let above = bottom - height(ratio) - 5.0;
        parts.push(text("number", center + 1.0 + BAR / 2.0, above, "middle", &label));
        let devices = format!("N = {}", row.devices);
        parts.push(text("number", center, bottom + 17.0, "middle", &devices));
    }
    let right = x + PANEL.0;
    parts.push(format!(
        r#"<line class="axis" x1="{x:.1}" y1="{bottom:.1}" x2="{right:.1}" y2="{bottom:.1}"/>"#
    ));
}

/// A bar that stands on `bottom`.
fn bar(class: &str, x: f64, bottom: f64, width: f64, height: f64) -> String {
    let y = bottom - height;
    format!(
        r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}"/>"#
    )
}

fn text(class: &str, x: f64, y: f64, anchor: &str, content: &str) -> String {
    format!(
        r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{content}</text>"#
    )
}
