//! Start-up: what the start of a job is spent on, and what of it grows with hosts.

use super::format::{plural, seconds};
use super::table::table;
use crate::start_up::{StartUp, StartUpPart};

pub fn section(start_up: &StartUp) -> String {
    let compiling = if start_up.compile.is_some() { "" } else { " and compiling" };
    let row = |part: &StartUpPart| {
        format!(
            "<tr><td>{}</td><td class=\"number\">{}</td><td class=\"dim\">{}</td></tr>\n",
            part.what,
            part.seconds.map_or_else(|| "unknown".to_owned(), seconds),
            part.growth
        )
    };
    let rows: Vec<String> = start_up.parts().iter().map(row).collect();
    format!(
        "<section id=\"start-up\">\n<h2>Start-up</h2>\n<p class=\"lead\">{}{compiling} on {}, one \
         process each. A further host adds {}.</p>\n{}</section>\n",
        seconds(start_up.total()),
        plural(start_up.hosts, "host"),
        seconds(start_up.per_host),
        table("<th>part</th><th class=\"number\">time</th><th>with more hosts</th>", &rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullshard_core::Platform;

    #[test]
    fn parts_that_grow_are_named() {
        let drawn = section(&StartUp::of(Platform::Tpu, 16, 2_000_000_000, None, Some(12_000_000)));
        assert!(drawn.contains(" and compiling on 16 hosts"), "{drawn}");
        assert!(drawn.contains("<td>compile</td><td class=\"number\">unknown</td>"), "{drawn}");
        assert!(drawn.contains("<td>weights</td><td class=\"number\">2.00 s</td>"), "{drawn}");
        assert_eq!(drawn.matches(">grows with hosts").count(), 2);
        assert!(drawn.contains("each fetches 12.0 MB"), "{drawn}");
        let one = section(&StartUp::of(Platform::Tpu, 1, 0, Some(3.0), None));
        assert!(one.contains("3.00 s on 1 host,") && !one.contains("rendezvous"), "{one}");
    }
}
