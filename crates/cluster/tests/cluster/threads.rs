//! The calls of members, and the ways in which jobs fail.

use super::*;
use fullshard_cluster::{Error, MAX_VALUE};
use std::sync::mpsc::channel;
use std::time::Instant;

/// Members of a job meet, and leave.
fn meet(count: usize) {
    let start = Instant::now();
    let members = members(count);
    let joined = start.elapsed();
    for (process, member) in members.iter().enumerate() {
        assert_eq!((member.process(), member.count()), (process, count));
        assert!(member.hosts().iter().all(|host| !host.is_empty()));
    }
    let rounds = 20;
    let start = Instant::now();
    all(count, |process| {
        for _ in 0..rounds {
            members[process].barrier("same name", LONG).unwrap();
        }
    });
    let barrier = start.elapsed() / rounds;
    println!("{count} members: rendezvous {joined:.1?}, barrier {barrier:.2?}");
    assert!(joined < Duration::from_secs(5) && barrier < Duration::from_millis(500));
    leave(&members);
    assert!(members.iter().all(|member| member.failure().is_none()));
}

#[test]
fn processes_find_one_another_and_meet() {
    [2, 5, 16].into_iter().for_each(meet);
}

#[test]
#[ignore = "long: hundreds of threads"]
fn long_many_processes_meet() {
    [64, 256].into_iter().for_each(meet);
}

#[test]
fn values_are_put_once_and_waited_for() {
    let members = members(3);
    assert_eq!(members[1].try_get("key").unwrap(), None);
    let error = members[1].get("key", Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, Error::NoValue { .. }), "{error}");
    let values = std::thread::scope(|scope| {
        let waiting: Vec<_> =
            members.iter().map(|member| scope.spawn(|| member.get("key", LONG).unwrap())).collect();
        std::thread::sleep(Duration::from_millis(50));
        members[2].put("key", [0, 159, 146, 150]).unwrap();
        waiting.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(values.iter().all(|value| *value == [0, 159, 146, 150]));
    assert_eq!(members[0].try_get("key").unwrap(), Some(vec![0, 159, 146, 150]));
    let error = members[0].put("key", "other").unwrap_err();
    assert!(matches!(error, Error::Exists { .. }), "{error}");
    assert_eq!(members[1].get("key", LONG).unwrap(), [0, 159, 146, 150]);
    leave(&members);
}

#[test]
fn large_values_arrive_whole() {
    let members = members(2);
    let value: Vec<u8> = (0..10 << 20).map(|index: u32| ((index * 31) >> 3) as u8).collect();
    let start = Instant::now();
    members[0].put("large", value.clone()).unwrap();
    assert!(members[1].get("large", LONG).unwrap() == value);
    println!("10 MiB there and back: {:.1?}", start.elapsed());
    members[1].put("largest", vec![7; MAX_VALUE]).unwrap();
    assert!(members[0].get("largest", LONG).unwrap() == vec![7; MAX_VALUE]);
    let error = members[0].put("too large", vec![0; MAX_VALUE + 1]).unwrap_err();
    assert!(error.to_string().contains("\"too large\" has 67108865 bytes"), "{error}");
    // Together they are too large for one message.
    let gathered = all(2, |process| members[process].gather("g", vec![0; MAX_VALUE / 2 + 1], LONG));
    for error in gathered.into_iter().map(Result::unwrap_err) {
        assert!(error.to_string().contains("at most 67108864"), "{error}");
    }
    assert!(members[0].failure().is_none());
    leave(&members);
}

/// The rate at which a program reaches all processes, which plans count with.
#[test]
#[ignore = "long: many copies of a large value"]
fn long_a_large_value_reaches_all() {
    let value = vec![7; 10 << 20];
    for count in [2, 4, 8, 16] {
        let members = members(count);
        let start = Instant::now();
        members[0].put("large", value.clone()).unwrap();
        let others = all(count, |process| {
            process == 0 || members[process].get("large", LONG).unwrap() == value
        });
        println!("10 MiB to {count} members: {:.1?}", start.elapsed());
        assert!(others.into_iter().all(|equal| equal));
        leave(&members);
    }
}

#[test]
fn gathers_keep_the_order_of_processes() {
    let members = members(4);
    for round in 0..10 {
        let gathered = all(4, |process| {
            members[process].gather("hash", vec![process as u8; process * round], LONG).unwrap()
        });
        for values in gathered {
            let sizes: Vec<_> = values.iter().map(Vec::len).collect();
            assert_eq!(sizes, [0, round, 2 * round, 3 * round]);
            assert!(values[3].iter().all(|byte| *byte == 3));
        }
    }
    leave(&members);
}

#[test]
fn calls_come_from_many_threads() {
    let members = members(2);
    std::thread::scope(|scope| {
        for index in 0..32 {
            let members = &members;
            scope.spawn(move || members[0].get(&format!("k{index}"), LONG).unwrap());
            scope.spawn(move || members[1].put(&format!("k{index}"), vec![index]).unwrap());
        }
    });
    leave(&members);
}

#[test]
fn a_barrier_names_who_is_missing() {
    let members = members(4);
    let short = Duration::from_millis(100);
    let errors = std::thread::scope(|scope| {
        let waiting = [0, 2].map(|process| {
            scope.spawn({
                let member = &members[process];
                move || member.barrier("saved", short).unwrap_err().to_string()
            })
        });
        waiting.map(|thread| thread.join().unwrap())
    });
    assert!(errors.iter().any(|error| error.contains("\"saved\": processes 1 and 3 did not")));
    // Nobody has failed: they can meet later.
    for met in all(4, |process| members[process].barrier("saved", LONG)) {
        met.unwrap();
    }
    // Who has left does not come.
    members[3].leave(LONG).unwrap();
    let error = members[0].barrier("later", LONG).unwrap_err().to_string();
    assert!(error.contains("process 3 left"), "{error}");
    leave(&members[..3]);
}

#[test]
fn a_missing_process_is_named() {
    let (job, mut first) = job(4);
    let (sender, told) = channel();
    first.timeout = Duration::from_millis(600);
    first.progress_every = Duration::from_millis(200);
    first.progress = Box::new(move |waiting| sender.send(waiting.clone()).unwrap());
    let errors = std::thread::scope(|scope| {
        let other = scope.spawn(|| job.join(2).err().unwrap().to_string());
        let first = join(&job.launch(0), first).err().unwrap().to_string();
        [first, other.join().unwrap()]
    });
    for error in &errors {
        assert!(error.contains("processes 1 and 3 did not come within 0.6 s"), "{errors:?}");
    }
    let waiting = told.try_iter().last().unwrap();
    assert_eq!((waiting.count, &waiting.missing[..]), (4, &[1, 3][..]));
    assert!(waiting.to_string().starts_with("waiting for processes 1 and 3 of 4"));
}

#[test]
fn a_missing_coordinator_is_named() {
    let (job, first) = job(2);
    drop(first);
    let options = Options { timeout: Duration::from_millis(300), ..options() };
    let error = join(&job.launch(1), options).err().unwrap().to_string();
    assert!(error.contains(&job.address.to_string()) && error.contains("refused"), "{error}");
    // A coordinator that should have been running is not waited for.
    let launch = Launch { coordinator_runs: true, ..job.launch(1) };
    let start = Instant::now();
    assert!(join(&launch, super::options()).is_err());
    assert!(start.elapsed() < Duration::from_secs(2));
}

/// A job whose process 1 is refused: what it and process 0 are told.
fn refused(launch: impl Fn(Launch) -> Launch + Sync, version: &str) -> [String; 2] {
    let (job, first) = job(3);
    std::thread::scope(|scope| {
        let start = Instant::now();
        let other = scope.spawn(|| {
            let options = Options { version: version.to_owned(), ..options() };
            join(&launch(job.launch(1)), options).err().unwrap().to_string()
        });
        let zero = join(&job.launch(0), first).err().unwrap().to_string();
        assert!(start.elapsed() < Duration::from_secs(3), "others wait for a refused one");
        [other.join().unwrap(), zero]
    })
}

#[test]
fn members_that_do_not_fit_are_refused() {
    for message in refused(|launch| launch, "0.2.0") {
        assert!(message.starts_with("process 1 on host "), "{message}");
        assert!(message.ends_with(" is fullshard 0.2.0, but process 0 is 1.2.3"), "{message}");
    }
    for message in refused(|launch| Launch { num_processes: 2, ..launch }, "1.2.3") {
        assert!(message.contains("one of 2 processes, but process 0 is one of 3"), "{message}");
    }
    for message in refused(|launch| Launch { process_id: 3, ..launch }, "1.2.3") {
        assert!(message.contains("is none of 3 processes"), "{message}");
    }
    for message in
        refused(|launch| Launch { process_id: 0, coordinator_runs: true, ..launch }, "1.2.3")
    {
        assert!(message.contains("process 0 on host"), "{message}");
        assert!(message.contains("has the number of another one"), "{message}");
    }
}

#[test]
fn a_process_that_comes_too_late_changes_nothing() {
    let (job, first) = job(2);
    let members = std::thread::scope(|scope| {
        let other = scope.spawn(|| job.join(1).unwrap());
        [join(&job.launch(0), first).unwrap(), other.join().unwrap()]
    });
    let error = job.join(1).err().unwrap().to_string();
    assert!(error.contains("process 1 on host") && error.contains("another one"), "{error}");
    for met in all(2, |process| members[process].barrier("still there", LONG)) {
        met.unwrap();
    }
    leave(&members);
}

#[test]
fn another_secret_is_refused() {
    let (job, first) = job(2);
    std::thread::scope(|scope| {
        let zero = scope.spawn(|| join(&job.launch(0), first).unwrap());
        let guess = Some("0123456789abcdef".to_owned());
        let error = join(&Launch { secret: guess, ..job.launch(1) }, options()).err().unwrap();
        assert!(error.to_string().contains("another secret"), "{error}");
        // The right one still gets in.
        let one = job.join(1).unwrap();
        leave(&[zero.join().unwrap(), one]);
    });
}

#[test]
fn a_secret_is_needed_beyond_loopback() {
    let (job, _) = job(2);
    let far = Launch { coordinator: Some("node1:61440".into()), secret: None, ..job.launch(1) };
    let error = join(&far, options()).err().unwrap().to_string();
    assert!(error.contains("node1:61440") && error.contains("FULLSHARD_SECRET"), "{error}");
    let short = Launch { secret: Some("short".into()), ..job.launch(1) };
    assert!(join(&short, options()).err().unwrap().to_string().contains("5 characters"));
}

#[test]
fn a_coordinator_on_all_interfaces_is_reached() {
    let listener = listen(0, false).unwrap();
    let port = listener.local_addr().unwrap().port();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let job = Job { count: 2, address, secret: random_secret().unwrap() };
    let first = Options { listener: Some(listener), ..options() };
    std::thread::scope(|scope| {
        let zero = scope.spawn(|| join(&job.launch(0), first).unwrap());
        let one = job.join(1).unwrap();
        leave(&[zero.join().unwrap(), one]);
    });
}

#[test]
fn a_failure_is_told_to_all_and_ends_what_waits() {
    let members = members(4);
    let (sender, told) = channel();
    members[3].on_failure(move |failure| sender.send(failure.clone()).unwrap());
    let messages = std::thread::scope(|scope| {
        let waits = |process: usize, what: fn(&Member) -> Result<()>| {
            let member = &members[process];
            scope.spawn(move || what(member).unwrap_err().to_string())
        };
        let waiting = [
            waits(0, |member| member.barrier("never", LONG)),
            waits(1, |member| member.get("never", LONG).map(drop)),
            waits(3, |member| member.gather("never too", vec![1], LONG).map(drop)),
        ];
        std::thread::sleep(Duration::from_millis(100));
        let start = Instant::now();
        members[2].fail("disk full", false);
        let messages = waiting.map(|thread| thread.join().unwrap());
        println!("told after {:.1?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(1));
        messages
    });
    for message in messages {
        assert!(message.starts_with("process 2 (host "), "{message}");
        assert!(message.ends_with("): disk full"), "{message}");
    }
    assert_eq!(told.recv_timeout(LONG).unwrap().process, Some(2));
    for member in &members {
        assert_eq!(member.failure().unwrap().message, "disk full");
        assert!(matches!(member.put("k", []), Err(Error::Failed(_))));
    }
    // Who asks late is told too.
    let (sender, told) = channel();
    members[1].on_failure(move |failure| sender.send(failure.clone()).unwrap());
    assert_eq!(told.recv_timeout(LONG).unwrap().message, "disk full");
}

#[test]
fn a_member_that_is_dropped_has_failed() {
    let mut members = members(3);
    drop(members.pop());
    let error = members[1].barrier("never", LONG).unwrap_err().to_string();
    assert!(error.starts_with("process 2 (host ") && error.contains("closed"), "{error}");
}

#[test]
fn process_0_waits_for_the_others_to_leave() {
    let members = members(3);
    let late = Duration::from_millis(300);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(late);
            members[1].leave(LONG).unwrap();
        });
        let start = Instant::now();
        let error = members[0].leave(Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.contains("processes 1 and 2 did not come"), "{error}");
        members[2].leave(LONG).unwrap();
        members[0].leave(LONG).unwrap();
        assert!(start.elapsed() >= late);
    });
}
