//! What the pictures of a run have in common: a white card with text and lines.

const STYLE: &str = "\
text { font-family: -apple-system, 'Segoe UI', Inter, Helvetica, Arial, sans-serif; }
.card { fill: #ffffff; stroke: #e2e8f0; }
.title { font-size: 18px; font-weight: 600; fill: #0f172a; }
.text { font-size: 12.5px; fill: #475569; }
.number { font-size: 12px; fill: #64748b; }
.grid { stroke: #eef2f6; }
.axis { stroke: #94a3b8; }
";

/// The start of a picture, to which `</svg>` belongs at its end.
pub(super) fn card(width: f64, height: f64, style: &str, title: &str) -> Vec<String> {
    vec![
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">"#
        ),
        format!("<title>{}</title>", escaped(title)),
        format!("<style>\n{STYLE}{style}</style>"),
        format!(
            r#"<rect class="card" x="0.5" y="0.5" width="{}" height="{}" rx="10"/>"#,
            width - 1.0,
            height - 1.0
        ),
    ]
}

pub(super) fn straight(class: &str, x1: f64, y1: f64, x2: f64, y2: f64) -> String {
    format!(r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#)
}

pub(super) fn text(class: &str, x: f64, y: f64, anchor: &str, content: &str) -> String {
    let content = escaped(content);
    format!(
        r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{content}</text>"#
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
