//! The goodput of runs that were killed.

use super::common::{Folder, number, text};
use super::{all_text, command, drill, fail, finish, folder};
use serde_json::Value;
use std::fs;
use std::io::Write as _;

/// The goodput of `out`.
fn goodput(folder: &Folder) -> Value {
    let output = command(folder, &["goodput", "out", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", all_text(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn seconds(goodput: &Value, part: &str) -> f64 {
    let parts = goodput["parts"].as_array().unwrap();
    number(&parts.iter().find(|it| it["part"] == part).unwrap()["seconds"])
}

/// Checks what is known of the long run, which was killed and resumed to its end.
pub fn accounts_for_kills(folder: &Folder, kills: usize) {
    let found = goodput(folder);
    let generations = found["generations"].as_array().unwrap();
    assert_eq!((found["restarts"].as_u64(), generations.len()), (Some(kills as u64), kills + 1));
    // The last kill may have come too late.
    let failures = found["failures"].as_u64().unwrap() as usize;
    assert!(failures + 1 >= kills && failures <= kills, "{found}");
    assert_eq!((&found["steps"], &generations[kills]["end"]), (&150.into(), &"done".into()));
    let wall: f64 =
        found["parts"].as_array().unwrap().iter().map(|it| number(&it["seconds"])).sum();
    assert!((wall / number(&found["wall_s"]) - 1.0).abs() < 1e-6, "{found}");
    for part in ["useful", "down", "restart", "start_up", "load", "saving"] {
        assert!(seconds(&found, part) > 0.0, "{part}: {found}");
    }
    let lost = found["steps_lost"].as_u64().unwrap();
    // Saved every second step, while the save before may not be complete.
    assert!(lost <= 6 * kills as u64, "{found}");
    assert_eq!(lost > 0, seconds(&found, "redone") > 0.0, "{found}");
    let interval = found["save_interval"]["steps"].as_u64().unwrap();
    assert!(interval >= 1, "{found}");
    let result = number(&folder.json("out/train_results.json")["goodput"]);
    assert!(
        (0.0..1.0).contains(&result) && result >= number(&found["goodput"]),
        "{result} {found}"
    );
    let logged = folder.names().into_iter().filter(|path| {
        let name = path.to_string_lossy();
        name.contains("tfevents") && text(&fs::read(path).unwrap()).contains("goodput")
    });
    assert!(logged.count() > 0, "TensorBoard has no goodput");

    let shown = finish(folder, &["goodput", "out", "--svg", "time.svg"]);
    for part in ["useful steps", "ended without a record", "suggested: --save_steps", "time.svg"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let svg = fs::read_to_string(folder.path("time.svg")).unwrap();
    assert!(svg.contains(">failure<") && svg.contains("down time"), "{svg}");
}

/// Half a line of a killed process, and another run in the same folder.
#[test]
fn the_journal_goes_on_after_a_torn_line() {
    let folder = folder();
    let flags = ["--save_strategy", "no", "--report_to", "none", "--overwrite_output_dir"];
    let printed = finish(&folder, &drill(&[&["--max_steps", "2"][..], &flags].concat()));
    assert_eq!(printed.matches("goodput ").count(), 2, "a line and a result: {printed}");
    let path = folder.path("out/goodput.jsonl");
    let mut journal = fs::OpenOptions::new().append(true).open(path).unwrap();
    journal.write_all(br#"{"time":1,"event":"sta"#).unwrap();
    finish(&folder, &drill(&[&["--max_steps", "3"][..], &flags].concat()));
    let found = goodput(&folder);
    assert_eq!((&found["steps"], &found["earlier_runs"]), (&3.into(), &1.into()), "{found}");
    assert_eq!((&found["failures"], &found["save_interval"]), (&0.into(), &Value::Null));
    let shown = finish(&folder, &["goodput", "out"]);
    for part in ["no failure seen", "no checkpoint was saved", "1 earlier run"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
}

#[test]
fn folders_without_a_journal_are_named() {
    let folder = folder();
    let before = folder.names();
    fail(&folder, &["goodput", "missing"], &["error: there is no goodput.jsonl in missing"]);
    fail(
        &folder,
        &["goodput", ".", "--svg", "time.svg"],
        &["error: there is no goodput.jsonl in ."],
    );
    assert_eq!(folder.names(), before);
    folder.write("goodput.jsonl", "no journal\n");
    fail(&folder, &["goodput", "."], &["error: ./goodput.jsonl: no run has started to train"]);
}
