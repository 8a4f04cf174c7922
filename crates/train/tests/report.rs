//! The outputs of a run, compared with those of Hugging Face's Trainer and read by TensorBoard.
#![allow(clippy::unwrap_used)]

use fullshard_train::report::{
    Curve, Error, EventWriter, Number, TerminalStyle, TrainerState, Values, metrics_block,
    save_metrics,
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};

fn recorded(name: &str) -> Value {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    serde_json::from_slice(&fs::read(data.join(name)).unwrap()).unwrap()
}

/// A file that `data/read_report.py` also reads.
fn shared(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("report").join(name)
}

fn values<const N: usize>(values: [(&str, Number); N]) -> Values {
    values.map(|(name, number)| (name.to_owned(), number)).into()
}

/// Recorded values; those that are not finite are strings.
fn recorded_values(recorded: &Value) -> Values {
    let number = |value: &Value| match value.as_str() {
        Some(text) => Number::Measure(text.parse().unwrap()),
        None => serde_json::from_value(value.clone()).unwrap(),
    };
    let object = recorded.as_object().unwrap();
    object.iter().map(|(name, value)| (name.clone(), number(value))).collect()
}

/// The lines of a JSON text up to their values: indentation and order of keys.
fn keys(text: &str) -> Vec<&str> {
    text.lines().map(|line| line.split_once(':').map_or(line, |(key, _)| key)).collect()
}

fn state() -> TrainerState {
    let mut state = TrainerState {
        max_steps: 20,
        logging_steps: 10,
        eval_steps: 20,
        train_batch_size: Some(8),
        num_train_epochs: 1,
        num_input_tokens_seen: 4096,
        total_flos: 7.5e13,
        best_metric: Some(2.5),
        best_global_step: Some(20),
        best_model_checkpoint: Some("out/checkpoint-20".to_owned()),
        ..TrainerState::default()
    };
    for (step, loss, norm, rate) in [(10, 3.5, 1.25, 5e-5), (20, 3.0, 0.75, 0.0)] {
        state.global_step = step;
        state.epoch = step as f64 / 20.0;
        state.log(values([
            ("loss", Number::from(loss)),
            ("grad_norm", Number::from(norm)),
            ("learning_rate", Number::from(rate)),
        ]));
    }
    state.log(values([("eval_loss", Number::from(2.5))]));
    state
}

#[test]
fn state_is_written_as_by_transformers() {
    let path = shared("trainer_state.json");
    state().save(path.parent().unwrap()).unwrap();
    let written = fs::read_to_string(path).unwrap();
    let recorded = recorded("report.json");
    let expected = recorded["state"].as_str().unwrap();
    assert_eq!(keys(&written), keys(expected));
    let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(parsed(&written), parsed(expected));
    assert_eq!(serde_json::from_str::<TrainerState>(expected).unwrap(), state());
}

#[test]
fn reads_old_states_and_non_finite_values() {
    let old: TrainerState = serde_json::from_str(r#"{"global_step": 7, "epoch": 0.5}"#).unwrap();
    assert_eq!(old, TrainerState { global_step: 7, epoch: 0.5, ..TrainerState::default() });

    let dir = tempfile::tempdir().unwrap();
    let mut state = TrainerState::default();
    state.log(values([("perplexity", Number::from(f64::INFINITY))]));
    state.save(dir.path()).unwrap();
    let written = fs::read(dir.path().join("trainer_state.json")).unwrap();
    let read: TrainerState = serde_json::from_slice(&written).unwrap();
    assert!(read.log_history[0]["perplexity"].as_f64().is_nan());
}

#[test]
fn results_are_printed_as_by_transformers() {
    let recorded = recorded("report.json");
    let blocks = recorded["blocks"].as_array().unwrap();
    assert_eq!(blocks.len(), 3);
    for block in blocks {
        let values = recorded_values(&block["values"]);
        let printed = metrics_block(block["split"].as_str().unwrap(), &values);
        assert_eq!(printed, block["block"].as_str().unwrap());
    }
    assert_eq!(metrics_block("eval", &Values::new()), "***** eval metrics *****\n");
}

#[test]
fn results_are_written_and_merged_as_by_transformers() {
    let dir = tempfile::tempdir().unwrap();
    let recorded = recorded("report.json");
    for block in &recorded["blocks"].as_array().unwrap()[..2] {
        let values = recorded_values(&block["values"]);
        save_metrics(dir.path(), block["split"].as_str().unwrap(), &values).unwrap();
    }
    for (name, expected) in recorded["results"].as_object().unwrap() {
        let written = fs::read_to_string(dir.path().join(name)).unwrap();
        let expected = expected.as_str().unwrap();
        assert_eq!(keys(&written), keys(expected), "{name}");
        let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(parsed(&written), parsed(expected), "{name}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
}

#[test]
fn unreadable_results_are_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let all = dir.path().join("all_results.json");
    fs::write(&all, "[1]").unwrap();
    let error = save_metrics(dir.path(), "train", &Values::new()).unwrap_err();
    assert!(matches!(&error, Error::Damaged { path, .. } if *path == all), "{error}");
    assert_eq!(fs::read_to_string(all).unwrap(), "[1]");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// The event file that TensorBoard has read.
fn write_events(path: &Path) {
    let mut writer = EventWriter::create_at(path, 1.7e9).unwrap();
    writer.text_at(1.7e9, "args", "{\"seed\": 42}").unwrap();
    let losses = [(10, 3.5, 5e-5), (20, 3.0, 0.0)];
    for (step, loss, rate) in losses {
        let log = values([("loss", Number::from(loss)), ("learning_rate", Number::from(rate))]);
        writer.log_at(1.7e9 + step as f64 / 2.0, step, &log).unwrap();
    }
    let log = values([
        ("eval_loss", Number::from(2.5)),
        ("eval_samples", Number::from(64_usize)),
        ("test_loss", Number::from(f64::NAN)),
        ("epoch", Number::from(1.0)),
    ]);
    writer.log_at(1.7e9 + 10.5, 1 << 40, &log).unwrap();
}

#[test]
fn events_match_those_read_by_tensorboard() {
    let path = shared("events.out.tfevents.0");
    write_events(&path);
    let digest: String =
        Sha256::digest(fs::read(&path).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect();
    let read = recorded("events.json");
    assert_eq!(read["sha256"], digest);

    let late = serde_json::json!([1.7e9 + 10.5, 1_u64 << 40, 2.5]);
    assert_eq!(read["scalars"]["eval/loss"], serde_json::json!([late]));
    let losses = serde_json::json!([[1.7e9 + 5.0, 10, 3.5], [1.7e9 + 10.0, 20, 3.0]]);
    assert_eq!(read["scalars"]["train/loss"], losses);
    assert_eq!(read["scalars"]["train/learning_rate"][1][2], 0.0);
    assert_eq!(read["scalars"]["eval/samples"][0][2], 64.0);
    assert_eq!(read["scalars"]["test/loss"][0][2], "nan");
    assert_eq!(read["scalars"].as_object().unwrap().len(), 6);
    assert_eq!(read["texts"]["args/text_summary"], serde_json::json!(["{\"seed\": 42}"]));
    assert_eq!(read["plugins"]["args/text_summary"], "text");
}

#[test]
fn events_are_written_immediately() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(dir.path()).unwrap();
    let path = writer.path().to_owned();
    let length = || fs::metadata(&path).unwrap().len();
    let before = length();
    writer.log(1, &values([("loss", Number::from(1.0))])).unwrap();
    assert!(length() > before);

    let relative = path.strip_prefix(dir.path()).unwrap().to_str().unwrap();
    let parts: Vec<&str> = relative.split('/').collect();
    let [runs, folder, file] = parts[..] else { panic!("{relative}") };
    assert_eq!(runs, "runs");
    // As in Nov15_08-54-00_host.
    let (time, host) = folder.split_at(14);
    assert_eq!((&time[5..6], &time[8..9], &time[11..12]), ("_", "-", "-"), "{folder}");
    let host = host.strip_prefix('_').unwrap();
    assert!(file.starts_with("events.out.tfevents."), "{file}");
    assert!(file.ends_with(&format!(".{host}.{}.0", std::process::id())), "{file}");
}

/// A run of `count` logs that falls from 4 towards 1.5, with noise.
fn curve(count: usize) -> Curve {
    let noise = |i: usize| ((i * i * 7919 % 1009) as f64 / 1009.0 - 0.5) * 0.3;
    let loss = |part: f64| 1.5 + 2.6 * (-6.0 * part).exp();
    let part = |i: usize| i as f64 / count as f64;
    let mut history: Vec<Values> = (1..=count)
        .map(|i| values([("loss", (loss(part(i)) + noise(i)).into()), ("step", (2 * i).into())]))
        .collect();
    history.extend((1..=4).map(|i| {
        values([("eval_loss", loss(i as f64 / 4.0).into()), ("step", (count / 2 * i).into())])
    }));
    history.push(values([("loss", f64::NAN.into()), ("step", (2 * count + 2).into())]));
    Curve::of("GPT-2, 4 devices", &history).with_floor(1.386, "entropy of the source")
}

fn plain() -> TerminalStyle {
    TerminalStyle::default()
}

#[test]
fn a_curve_in_a_terminal() {
    let picture = curve(200).terminal(&plain());
    assert_eq!(picture.lines().count(), 18);
    assert!(picture.lines().all(|line| line.chars().count() <= 72), "{picture}");
    insta::assert_snapshot!(picture);
}

#[test]
fn a_curve_as_svg() {
    let curve = curve(60);
    curve.save_svg(shared("loss.svg")).unwrap();
    insta::assert_snapshot!(curve.svg());
}

#[test]
fn colors_do_not_change_the_text() {
    let colored = curve(200).terminal(&TerminalStyle { colours: true, ..plain() });
    let mut stripped = String::new();
    let mut codes = Vec::new();
    for part in colored.split("\x1b[") {
        match part.split_once('m') {
            Some((code, rest)) if code.parse::<u8>().is_ok() => {
                codes.push(code);
                stripped.push_str(rest);
            }
            _ => stripped.push_str(part),
        }
    }
    let trimmed = |text: &str| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    assert_eq!(trimmed(&stripped), trimmed(&curve(200).terminal(&plain())));
    assert!(["33", "35", "36"].iter().all(|code| codes.contains(code)));
    assert!(
        colored.lines().all(|line| !line.contains('\x1b')
            || line.ends_with("\x1b[0m")
            || line.rfind("\x1b[0m") > line.rfind("\x1b[3")),
        "a color is not reset"
    );
}

#[test]
fn curves_of_every_size_can_be_drawn() {
    let nothing = Curve::of("empty", &[]).with_floor(1.0, "floor");
    assert_eq!(nothing.terminal(&plain()), "empty: no loss was logged\n");
    assert!(nothing.svg().contains("no loss was logged"));

    let one = Curve { losses: vec![(1.0, 2.0)], ..Curve::default() };
    let flat = Curve { losses: vec![(1.0, 2.0), (2.0, 2.0)], ..Curve::default() };
    let evaluated = Curve { evaluations: vec![(5.0, 2.0)], ..Curve::default() };
    let broken = Curve {
        losses: vec![(1.0, f64::NAN), (2.0, f64::INFINITY), (3.0, 1.0), (f64::NAN, 1.0)],
        ..Curve::default()
    }
    .with_floor(f64::NAN, "unknown");
    let long = Curve {
        losses: (0..100_000).map(|i| (f64::from(i), 1.0 + 1e3 / f64::from(i + 1))).collect(),
        ..Curve::default()
    };
    let tiny = Curve { losses: vec![(1.0, 1e-9), (2.0, 3e-9)], ..Curve::default() };
    for curve in [one, flat, evaluated, broken, long, tiny] {
        for (width, height) in [(72, 18), (1, 1), (200, 60)] {
            let picture = curve.terminal(&TerminalStyle { width, height, colours: true });
            assert!(picture.lines().count() >= 7, "{picture}");
        }
        let svg = curve.svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(svg.len() < 40_000, "{}", svg.len());
    }
}

#[test]
fn svg_text_is_escaped() {
    let mut curve = curve(10);
    curve.title = "a < b & \"c\"".to_owned();
    let svg = curve.svg();
    assert!(svg.contains(">a &lt; b &amp; \"c\"</text>"), "{svg}");
}
