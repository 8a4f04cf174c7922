//! What else connects to a port: scanners, browsers, garbage. None of it changes the job.

use super::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// A job of two in which strangers come before process 1.
fn with_strangers(strangers: impl FnOnce(&Job)) {
    let (job, first) = job(2);
    std::thread::scope(|scope| {
        let zero = scope.spawn(|| join(&job.launch(0), first).unwrap());
        strangers(&job);
        let start = Instant::now();
        let one = job.join(1).unwrap();
        assert!(start.elapsed() < Duration::from_secs(2));
        let members = [zero.join().unwrap(), one];
        for met in all(2, |process| members[process].barrier("met", LONG)) {
            met.unwrap();
        }
        leave(&members);
    });
}

/// Sends bytes, and reads until the coordinator has had enough.
fn send(job: &Job, bytes: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(job.address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let _ = socket.write_all(bytes);
    let _ = socket.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    answer
}

#[test]
fn garbage_changes_nothing() {
    with_strangers(|job| {
        let noise: Vec<u8> =
            (0..100_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        send(job, &noise);
        send(job, &[0; 4096]);
        send(job, b"");
        // The preface of HTTP/2, then a frame of 16 MiB.
        send(job, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x00\x00\x00\x00\x00\x01");
    });
}

#[test]
fn a_browser_gets_no_answer() {
    with_strangers(|job| {
        let answer = send(job, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(!String::from_utf8_lossy(&answer).contains("200 OK"));
    });
}

#[test]
fn held_connections_leave_room_for_members() {
    let mut held = Vec::new();
    // More than are kept: the oldest is closed, the newest is not.
    with_strangers(|job| {
        held.extend((0..600).map(|_| TcpStream::connect(job.address).unwrap()));
        assert!(is_closed(&mut held[0]));
        assert!(!is_closed(&mut held[599]));
    });
}

/// Whether the coordinator closes a connection soon.
fn is_closed(socket: &mut TcpStream) -> bool {
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    match socket.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}
