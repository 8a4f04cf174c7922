//! The page has every section, its drawings add up, and it is self-contained.

mod reports;

use super::page;
use crate::report::{ModuleTime, Report};
use reports::{GIB, collective, frontier, on_switch, on_torus};

/// The numeric values of an attribute of the elements of a class.
fn numbers(page: &str, class: &str, attribute: &str) -> Vec<f64> {
    let elements = page.split('<').filter(|element| element.contains(&format!("class=\"{class}")));
    let value = |element: &str| {
        let value = element.split(&format!(" {attribute}=\"")).nth(1)?;
        value.split('"').next()?.parse().ok()
    };
    elements.filter_map(value).collect()
}

#[test]
fn page_has_every_section_that_there_is() {
    assert!(!page(&on_torus(), None).contains("id=\"frontier\""));
    let page = page(&on_torus(), Some(&frontier()));
    for id in ["verdict", "memory", "time", "communication", "frontier", "warnings", "notes"] {
        assert!(page.contains(&format!("id=\"{id}\"")), "{id}");
    }
    for text in
        ["✓ Fits", "46.1 %", "42.3 days", "ring of 4", "libtpu 0.0.51", "prefers-color-scheme"]
    {
        assert!(page.contains(text), "{text}");
    }
    assert_eq!(page.matches("class=\"collective\"").count(), 3);
    assert_eq!(page.matches("class=\"found\"").count(), 7);
    assert_eq!(page.matches("<td class=\"meter\">").count(), 10);
}

#[test]
fn modules_that_cause_collectives_are_listed() {
    let page = page(&on_torus(), None);
    assert_eq!(page.matches("class=\"cause\"").count(), 2);
    assert!(page.contains("transformer.h.*.attn, backward, first of 3"));
    let mut quick = on_torus();
    quick.collectives_by_module.clear();
    assert!(!super::page(&quick, None).contains("Collectives by module"));
}

#[test]
fn memory_bar_matches_the_total() {
    let mut report = on_torus();
    let drawn = page(&report, None);
    let bytes: f64 = numbers(&drawn, "part", "data-bytes").iter().sum();
    assert_eq!(bytes, report.memory.total as f64);
    let width: f64 = numbers(&drawn, "part", "width").iter().sum();
    let track = numbers(&drawn, "track", "width")[0];
    let share = report.memory.total as f64 / report.memory.limit as f64;
    assert!((width / track - share).abs() < 1e-3, "{width} of {track}");
    assert!(!drawn.contains("Does not fit"));

    // The excess is drawn beyond the limit.
    report.memory.limit = 8 * GIB;
    let drawn = page(&report, None);
    let track = numbers(&drawn, "track", "width")[0];
    let end: f64 = numbers(&drawn, "part", "width").iter().sum();
    assert!(drawn.contains("Does not fit") && end > 2.0 * track);
}

/// A step that fits the device and not its host says what of the host is missing.
#[test]
fn verdict_is_of_the_memory_that_overflows() {
    let mut report = on_torus();
    (report.memory.host, report.memory.host_limit) = (40 * GIB, Some(32 * GIB));
    let drawn = page(&report, None);
    for text in [
        "Does not fit",
        "40.0 GiB of 32.0 GiB host memory per device, 125.0 %",
        "8.0 GiB per device over the limit of host memory",
    ] {
        assert!(drawn.contains(text), "{text}");
    }
    report.memory.host_limit = Some(64 * GIB);
    assert!(!page(&report, None).contains("host memory"));
}

#[test]
fn timeline_is_as_long_as_the_step() {
    let report = on_torus();
    let drawn = page(&report, None);
    // From 0 s to the step time.
    let timeline = drawn.split("Time by module").nth(1).unwrap();
    let timeline = timeline.split("</svg>").next().unwrap();
    let widths = numbers(timeline, "f-blue", "width");
    let scale = 610.0 / report.time.step;
    let all: f64 = widths.iter().sum();
    assert!((all / scale / report.time.compute - 1.0).abs() < 0.02, "{all}");
    assert!(timeline.find("Forward").unwrap() < timeline.find("Backward").unwrap());
    assert!(timeline.contains("transformer.h.*.mlp.c_fc") && timeline.contains("×24"));
}

#[test]
fn unrolled_layers_are_merged() {
    let mut report = on_torus();
    for module in &mut report.time.modules {
        module.module = module.module.replace('*', "0");
    }
    let others = report.time.modules.clone();
    let others =
        others.into_iter().map(|it| ModuleTime { module: it.module.replace(".0.", ".1."), ..it });
    report.time.modules.extend(others.collect::<Vec<_>>());
    let drawn = page(&report, None);
    assert!(drawn.contains("transformer.h.*.mlp.c_fc") && !drawn.contains("transformer.h.0"));
}

#[test]
fn rings_are_closed_and_lines_are_not() {
    let mut report = on_torus();
    let rings = |report: &Report| page(report, None).matches(" ring\"").count();
    // One per dimension.
    assert_eq!(rings(&report), 3);
    report.machine.wrap = vec![false, true, false];
    assert_eq!(rings(&report), 1);
    report.machine.wrap = vec![false; 3];
    assert_eq!(rings(&report), 0);
}

#[test]
fn large_slices_are_drawn_partially() {
    let mut report = on_torus();
    report.machine.torus = vec![8, 16, 16];
    report.machine.devices = 2048;
    let drawn = page(&report, None);
    assert!(drawn.matches("class=\"chip\"").count() <= 64);
    assert!(drawn.contains("ring of 16"));
}

#[test]
fn switch_devices_are_drawn_around_it() {
    let drawn = page(&on_switch(), None);
    assert!(drawn.contains("8 devices around a switch"));
    assert_eq!(drawn.matches("<circle class=\"chip\"").count(), 8);
}

/// One slice or node is drawn; the page states how many there are and what goes between them.
#[test]
fn several_slices_and_nodes_are_counted() {
    let mut slices = on_torus();
    (slices.machine.islands, slices.machine.devices) = (2, 128);
    slices.collectives[0].islands = 2;
    let drawn = page(&slices, None);
    assert!(drawn.contains("2 slices of 64 devices") && drawn.contains(">2 slices</span>"));
    assert_eq!(drawn.matches(" ring\"").count(), 3);
    let mut nodes = on_switch();
    (nodes.machine.islands, nodes.machine.devices) = (16, 128);
    let drawn = page(&nodes, None);
    assert!(drawn.contains("16 nodes of 8 devices"));
    assert_eq!(drawn.matches("<circle class=\"chip\"").count(), 8);
}

#[test]
fn long_tables_are_collapsed() {
    let mut report = on_torus();
    assert!(!page(&report, None).contains("<details>"));
    report.collectives = (0..25).map(|i| collective("all-gather", 64, i, 1 << 20)).collect();
    let drawn = page(&report, None);
    assert!(drawn.contains("<summary>15 more</summary>"));
    assert_eq!(drawn.matches("class=\"collective\"").count(), 25);
}

#[test]
fn one_device_has_no_communication() {
    let mut report = on_switch();
    report.machine.devices = 1;
    report.collectives.clear();
    assert!(!page(&report, None).contains("id=\"communication\""));
}

#[test]
fn page_is_self_contained() {
    let page = page(&on_torus(), Some(&frontier()));
    for external in
        ["http:", "https:", "//www", "<script", "<link", "@import", " src=", "javascript:"]
    {
        assert!(!page.contains(external), "{external}");
    }
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    for element in ["section", "svg", "table", "g", "pre", "div", "ul"] {
        let opened = page.matches(&format!("<{element} ")).count()
            + page.matches(&format!("<{element}>")).count();
        assert_eq!(opened, page.matches(&format!("</{element}>")).count(), "{element}");
    }
}
