//! Journals that were made up, with times that are easy to add.

use super::*;
use Part::*;

/// Seconds since 1970 of the first start.
const START: f64 = 1.7e9;

/// A journal, whose times are in seconds since the first start.
#[derive(Default)]
struct Story(Vec<Record>);

impl Story {
    fn at(mut self, time: f64, event: Event) -> Story {
        self.0.push(Record { time: START + time, event });
        self
    }

    /// A start that trains after ten seconds, two of which it loads weights.
    fn start(self, time: f64, run: &str) -> Story {
        self.at(time, start(run)).at(
            time + 10.0,
            Event::StartUp { rendezvous: 1.0, data: 2.0, compile: 5.0, weights: 2.0 },
        )
    }

    fn resume(self, time: f64, step: u64) -> Story {
        let resumed = Event::Resumed { step, seconds: 2.0, from: Source::Disk };
        let start_up = Event::StartUp { rendezvous: 0.0, data: 0.0, compile: 0.0, weights: 2.0 };
        self.at(time, start("a")).at(time + 10.0, resumed).at(time + 10.0, start_up)
    }

    /// Steps that end at a time, of a second each.
    fn steps(self, end: f64, from: u64, to: u64) -> Story {
        self.at(end, Event::Steps { from, to, seconds: (to + 1 - from) as f64 })
    }

    fn save(self, end: f64, step: u64) -> Story {
        self.at(end, Event::Save { step, pause_s: 2.0 })
            .at(end + 0.5, Event::Saved { step, seconds: 0.5 })
    }

    fn fail(self, time: f64, silent_s: Option<f64>) -> Story {
        let (process, host) = (Some(1), Some("b".to_owned()));
        self.at(time, Event::Failure { process, host, reason: "killed".into(), silent_s })
    }

    fn end(self, time: f64, how: Ended) -> Story {
        self.at(time, Event::End { how, reason: None })
    }

    fn goodput(&self) -> Goodput {
        let goodput = analyze(&self.0).unwrap();
        let sum: f64 = goodput.parts.iter().map(|it| it.seconds).sum();
        assert!((sum - goodput.wall_s).abs() < 1e-6, "{sum} {}", goodput.wall_s);
        assert!(goodput.parts.iter().all(|it| it.seconds >= 0.0), "{goodput:?}");
        let mut at = 0.0;
        for span in &goodput.spans {
            assert!(span.from == at && span.to > at, "{:?}", goodput.spans);
            at = span.to;
        }
        goodput
    }
}

fn start(run: &str) -> Event {
    let (run, processes, devices) = (run.to_owned(), 2, 8);
    Event::Start { run, generation: None, processes, devices, starts_over: false }
}

/// Checks the seconds of all parts that are not zero.
fn has_parts(goodput: &Goodput, expected: &[(Part, f64)]) {
    for part in Part::ALL {
        let expected = expected.iter().find(|it| it.0 == part).map_or(0.0, |it| it.1);
        let found = goodput.seconds(part);
        assert!((found - expected).abs() < 1e-5, "{part:?}: {found}, not {expected}: {goodput}");
    }
}

#[test]
fn a_run_without_failures() {
    let story = Story::default()
        .start(0.0, "a")
        .steps(15.0, 1, 1) // Four seconds of it are not usual.
        .steps(24.0, 2, 10)
        .save(26.0, 10)
        .at(29.0, Event::Evaluation { seconds: 3.0 })
        .steps(39.0, 11, 20)
        .at(42.0, Event::Export { seconds: 3.0 })
        .end(42.0, Ended::Done);
    let mut records = story.0;
    let Event::Steps { seconds, .. } = &mut records[2].event else { unreachable!() };
    *seconds = 5.0;
    let goodput = Story(records).goodput();
    let parts = [(Useful, 20.0), (StartUp, 12.0), (Load, 2.0), (Saving, 5.0), (Evaluation, 3.0)];
    has_parts(&goodput, &parts);
    assert!((goodput.share() - 20.0 / 42.0).abs() < 1e-9);
    assert_eq!((goodput.steps, goodput.steps_lost, goodput.restarts()), (Some(20), 0, 0));
    assert_eq!((goodput.between_failures_s(), goodput.save_interval()), (None, None));
    assert_eq!(goodput.generations[0].end.as_deref(), Some("done"));
    let text = goodput.to_string();
    assert!(text.starts_with("goodput 47.6 % of 42.00 s: start-up 28.6 %, saving"), "{text}");
    assert!(!text.contains("failure"), "{text}");
}

/// Killed after step 30 and resumed from step 25, without a supervisor.
#[test]
fn a_run_that_was_killed_and_resumed_by_hand() {
    let goodput = Story::default()
        .start(0.0, "a")
        .steps(35.0, 1, 25)
        .save(37.0, 25)
        .steps(42.0, 26, 30)
        .resume(62.0, 25)
        .steps(82.0, 26, 35)
        .end(82.0, Ended::Done)
        .goodput();
    has_parts(
        &goodput,
        &[
            (Useful, 35.0),
            (Redone, 5.0),
            (StartUp, 8.0),
            (Restart, 8.0),
            (Load, 4.0),
            (Saving, 2.0),
            (Down, 20.0),
        ],
    );
    assert_eq!((goodput.failures.len(), goodput.restarts(), goodput.steps_lost), (1, 1, 5));
    assert_eq!(goodput.failures, [42.0]);
    let ends: Vec<_> = goodput.generations.iter().map(|it| it.end.as_deref().unwrap()).collect();
    assert_eq!(ends, ["ended without a record", "done"]);
    assert_eq!(goodput.generations[1].resumed_from, Some(25));
    // Up for 42 and 20 seconds: a save pauses for two, and should happen every √(2 · 2 · 62).
    assert_eq!(goodput.between_failures_s(), Some(62.0));
    let interval = goodput.save_interval().unwrap();
    assert!((interval.seconds - 248_f64.sqrt()).abs() < 1e-6 && interval.steps == 16);
    assert!(goodput.to_string().ends_with("; 1 failure, 5 steps lost"), "{goodput}");
}

/// The supervisor detects a failure and restarts. The steps between the last record and the last
/// sign of progress are lost too.
#[test]
fn a_run_that_is_supervised() {
    let supervised = |silent_s| {
        Story::default()
            .start(0.0, "a")
            .steps(30.0, 1, 20)
            .save(32.0, 20)
            .fail(42.0, silent_s)
            .at(45.0, Event::Restart { generation: 1, processes: 2, delay_s: 3.0 })
            .resume(46.0, 20)
            .steps(66.0, 21, 30)
            .end(66.0, Ended::Done)
            .goodput()
    };
    let parts = [(Useful, 30.0), (StartUp, 8.0), (Restart, 12.0), (Load, 4.0), (Saving, 2.0)];
    let goodput = supervised(None);
    has_parts(&goodput, &[&parts[..], &[(Detection, 10.0)]].concat());
    assert_eq!(goodput.generations[0].end.as_deref(), Some("process 1 (b): killed"));
    assert!(goodput.generations[0].failed && !goodput.generations[1].failed);
    let goodput = supervised(Some(4.0));
    has_parts(&goodput, &[&parts[..], &[(Detection, 4.0), (Redone, 6.0)]].concat());
    // As long as since the last record, at most.
    let goodput = supervised(Some(1e9));
    has_parts(&goodput, &[&parts[..], &[(Detection, 10.0)]].concat());
    assert_eq!((goodput.failures.len(), goodput.restarts()), (1, 1));
}

/// Generations that end before they train leave nothing but what the supervisor records.
#[test]
fn generations_that_never_start() {
    let goodput = Story::default()
        .start(0.0, "a")
        .steps(20.0, 1, 10)
        .fail(21.0, None)
        .fail(30.0, None)
        .fail(40.0, None)
        .resume(41.0, 0)
        .steps(61.0, 1, 10)
        .goodput();
    let parts = [(Useful, 10.0), (Redone, 10.0), (StartUp, 8.0), (Detection, 1.0)];
    has_parts(&goodput, &[&parts[..], &[(Restart, 28.0), (Load, 4.0)]].concat());
    assert_eq!((goodput.failures.len(), goodput.restarts(), goodput.steps_lost), (3, 1, 10));
    assert_eq!(goodput.generations[1].end, None);
}

/// Half of a record of steps may be lost, and lost again.
#[test]
fn steps_are_lost_more_than_once() {
    let goodput = Story::default()
        .start(0.0, "a")
        .steps(20.0, 1, 10)
        .resume(20.0, 5)
        .steps(35.0, 6, 10)
        .resume(35.0, 8)
        .steps(50.0, 9, 13)
        .goodput();
    let parts = [(Useful, 13.0), (Redone, 7.0), (StartUp, 8.0), (Restart, 16.0), (Load, 6.0)];
    has_parts(&goodput, &parts);
    assert_eq!((goodput.steps, goodput.steps_lost), (Some(13), 7));
    // Lost in the order of time: five steps of the first generation, two of the second.
    let lost: Vec<_> = goodput.spans.iter().filter(|span| span.part == Redone).collect();
    assert_eq!(lost.len(), 2);
    assert!((lost[0].from, lost[0].to) == (15.0, 20.0) && lost[1].to == 35.0, "{lost:?}");
}

/// A run that stops by a signal has not failed. What is lost between a complete run and its
/// continuation is no time of the run.
#[test]
fn ends_that_are_no_failures() {
    let before = || Story::default().start(0.0, "a").steps(20.0, 1, 10);
    let after = |story: Story| story.resume(100.0, 10).steps(120.0, 11, 20).goodput();
    let parts = [(Useful, 20.0), (StartUp, 8.0), (Restart, 8.0), (Load, 4.0)];
    let stopped = after(before().end(20.0, Ended::Stopped));
    has_parts(&stopped, &[&parts[..], &[(Down, 80.0)]].concat());
    assert_eq!((stopped.failures.len(), stopped.restarts()), (0, 1));
    let done = after(before().end(20.0, Ended::Done).fail(21.0, None));
    has_parts(&done, &parts);
    assert_eq!(done.failures.len(), 0);
    assert_eq!(done.generations[1].started, START + 100.0);
    let failed = after(before().end(20.0, Ended::Failed).fail(22.0, None));
    has_parts(
        &failed,
        &[(Useful, 20.0), (StartUp, 8.0), (Restart, 86.0), (Load, 4.0), (Detection, 2.0)],
    );
    assert_eq!(failed.failures.len(), 1);
}

#[test]
fn the_last_run_of_a_folder_counts() {
    let story = Story::default().start(0.0, "a").steps(20.0, 1, 10);
    let goodput = Story(story.start(100.0, "b").steps(120.0, 1, 10).0).goodput();
    has_parts(&goodput, &[(Useful, 10.0), (StartUp, 8.0), (Load, 2.0)]);
    assert_eq!((goodput.run.as_str(), goodput.earlier_runs), ("b", 1));
    assert_eq!(goodput.started, START + 100.0);
    assert_eq!(analyze(&[]), None);

    // Without a checkpoint to resume from, or by a supervisor, it is the same run.
    for (generation, starts_over) in [(None, true), (Some(1), false)] {
        let story = Story::default().start(0.0, "a").steps(20.0, 1, 10);
        let run = "b".to_owned();
        let again = Event::Start { run, generation, processes: 1, devices: 1, starts_over };
        let goodput = story.at(30.0, again).steps(50.0, 1, 10).goodput();
        assert_eq!((goodput.restarts(), goodput.steps_lost, goodput.earlier_runs), (1, 10, 0));
        has_parts(
            &goodput,
            &[
                (Useful, 10.0),
                (Redone, 10.0),
                (StartUp, 8.0),
                (Load, 2.0),
                (Down, 10.0),
                (Restart, 10.0),
            ],
        );
    }
}

/// Clocks that are set back, or differ between the supervisor and the first process.
#[test]
fn clocks_may_step() {
    let goodput = Story::default()
        .start(0.0, "a")
        .steps(20.0, 1, 10)
        .fail(15.0, None)
        .resume(-3600.0, 10)
        .steps(-3580.0, 11, 20)
        .fail(41.0, None)
        .goodput();
    // The second generation starts where the first ended.
    let parts = [(Useful, 20.0), (StartUp, 8.0), (Restart, 8.0), (Load, 4.0), (Detection, 1.0)];
    has_parts(&goodput, &parts);
    let absurd = Story::default()
        .start(0.0, "a")
        .at(f64::NAN, Event::Export { seconds: 3.0 })
        .at(20.0, Event::Steps { from: 1, to: 10, seconds: 1e30 })
        .at(21.0, Event::Steps { from: 9, to: 2, seconds: -1.0 })
        .at(22.0, Event::Evaluation { seconds: f64::NAN })
        .at(23.0, Event::Unknown)
        .goodput();
    has_parts(&absurd, &[(Useful, 10.0), (StartUp, 8.0), (Load, 2.0), (Other, 2.0)]);
}

/// Pauses that are long for the time between failures.
#[test]
fn the_save_interval_has_bounds() {
    let story = Story::default().start(0.0, "a").steps(11.0, 1, 1).steps(20.0, 2, 10);
    let with = |pause_s: f64, seconds: f64| {
        let story = Story(story.0.clone())
            .at(20.0 + pause_s, Event::Save { step: 10, pause_s })
            .at(20.0 + pause_s, Event::Saved { step: 10, seconds })
            .fail(20.0 + pause_s, None);
        story.goodput().save_interval().unwrap()
    };
    // No less than it takes to write, and no more than the time between failures.
    assert!((with(0.1, 30.0).seconds - 30.1).abs() < 1e-5);
    assert!((with(80.0, 1.0).seconds - 100.0).abs() < 1e-5);
    let usual = with(0.1, 0.0);
    assert!((usual.seconds - (0.2 * 20.1_f64).sqrt()).abs() < 1e-5 && usual.steps == 2);
    assert!(with(1e-6, 0.0).steps == 1);
}

#[test]
fn reports_are_written_as_json() {
    let goodput = Story::default().start(0.0, "a").steps(20.0, 1, 10).fail(25.0, None).goodput();
    let json = serde_json::to_value(&goodput).unwrap();
    assert_eq!((json["goodput"].as_f64(), json["failures"].as_u64()), (Some(0.4), Some(1)));
    assert_eq!(
        (&json["parts"][0]["part"], &json["parts"][0]["seconds"]),
        (&"useful".into(), &10.0.into())
    );
    assert_eq!(json["generations"][0]["steps"], serde_json::json!([1, 10]));
}
