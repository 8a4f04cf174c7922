//! Goodput: what failures and saves cost.

use super::format::{percent, plural, seconds};
use super::table::table;
use crate::goodput::{Goodput, LostTime};

pub fn section(goodput: &Goodput) -> String {
    let row = |part: &LostTime| {
        format!(
            "<tr><td>{}</td><td class=\"number\">{}</td><td class=\"dim\">{}</td></tr>\n",
            part.what,
            seconds(part.seconds),
            part.when
        )
    };
    let rows: Vec<String> = goodput.parts().iter().map(row).collect();
    format!(
        "<section id=\"goodput\">\n<h2>Goodput</h2>\n<p class=\"lead\">{} of the time is spent on \
         steps that count, with a failure every {} on {}, each of which fails every {:.0} days{}.\
         </p>\n{}</section>\n",
        percent(goodput.goodput),
        goodput.failure_every(),
        plural(goodput.hosts, "host"),
        goodput.host_mtbf_days,
        if goodput.given_mtbf { "" } else { ", as published for similar ones" },
        table("<th>lost</th><th class=\"number\">time</th><th></th>", &rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goodput::tests::example;

    #[test]
    fn what_is_lost_is_listed() {
        let drawn = section(&example());
        assert!(drawn.contains("94.0 % of the time"), "{drawn}");
        assert!(
            drawn.contains("every 78.1 days on 16 hosts, each of which fails every 1250 days, as")
        );
        assert_eq!(drawn.matches("<tr><td>").count(), 5);
        assert!(drawn.contains("every 500 steps; the best is every 145"));
        let given = Goodput { given_mtbf: true, ..example() };
        assert!(!section(&given).contains("published"));
    }
}
