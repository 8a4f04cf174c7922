//! Simulated collectives against the closed forms of plans: 3 % on rings, 10 % where links are
//! shared.
#![allow(clippy::unwrap_used)]

use fullshard_core::CollectiveKind::{self, *};
use fullshard_plan::{Fabric, Machine, Network, Streams};
use fullshard_simulate::collectives::{Options, cases, compare, simulate};

const KINDS: [CollectiveKind; 3] = [AllGather, ReduceScatter, AllReduce];
const W: f64 = 80e9;
const ALPHA: f64 = 1e-6;
const V: u64 = 256_000_000;

fn torus(dims: &[usize], wrap: &[bool]) -> Network {
    let (dims, wrap) = (dims.to_vec(), wrap.to_vec());
    let island = dims.iter().product();
    let streams = Streams::Sequential;
    let fabric = Fabric::Torus { dims, wrap, link: W, latency: ALPHA, streams };
    Network { fabric, island, dcn: None }
}

fn seconds(network: &Network, kind: CollectiveKind, bytes: u64, members: &[usize]) -> f64 {
    simulate(network, kind, bytes, members, Options::default()).unwrap().seconds
}

fn first(count: usize) -> Vec<usize> {
    (0..count).collect()
}

/// Compares all cases of a torus with the closed forms.
fn check(dims: &[usize], wrap: &[bool], kinds: &[CollectiveKind]) {
    let network = torus(dims, wrap);
    let mut contended = 0;
    for case in cases(dims, wrap) {
        for &kind in kinds {
            let found = compare(&network, &case, kind, V, 1).unwrap();
            let most = if case.contended { 0.10 } else { 0.03 };
            assert!(found.error.abs() < most, "{dims:?}: {found:?}");
            contended += usize::from(case.contended);
        }
    }
    assert!(contended > 0);
}

#[test]
fn rings_take_what_the_closed_form_says() {
    for length in [2, 3, 4, 5, 8, 16, 31, 32, 64] {
        let ring = torus(&[length], &[true]);
        for kind in KINDS {
            let found = seconds(&ring, kind, V, &first(length));
            let expected = ring.seconds(kind, V, &first(length));
            assert!((found / expected - 1.0).abs() < 0.03, "{length}: {found} and {expected}");
        }
    }
}

/// Also where latency is all: to the chip opposite and, of an odd number, half a hop less than
/// the closed form counts.
#[test]
fn small_tensors_take_their_hops() {
    let ring = torus(&[16], &[true]);
    let found = seconds(&ring, AllGather, 16, &first(16));
    assert!((found / (8.0 * ALPHA) - 1.0).abs() < 1e-3, "{found}");
    let line = torus(&[16], &[false]);
    let found = seconds(&line, ReduceScatter, 16, &first(16));
    assert!((found / (15.0 * ALPHA) - 1.0).abs() < 1e-3, "{found}");
}

#[test]
fn lines_have_half_the_rate() {
    let [line, ring] = [false, true].map(|wrap| torus(&[16], &[wrap]));
    for kind in KINDS {
        let [slow, fast] = [&line, &ring].map(|network| seconds(network, kind, V, &first(16)));
        assert!((slow / fast - 2.0).abs() < 0.01, "{kind}: {slow} and {fast}");
    }
}

#[test]
fn small_tori() {
    check(&[8, 8], &[true, true], &KINDS);
    check(&[4, 4, 4], &[true; 3], &KINDS);
    // Groups of four along a line would have too few messages per link to take turns evenly.
    check(&[16, 4], &[false, true], &KINDS);
}

#[test]
fn pods() {
    check(&[16, 16], &[true, true], &KINDS);
    check(&[32, 32], &[true, true], &[AllReduce]);
}

/// Four pods of TPU v3, joined along one dimension.
#[test]
fn four_thousand_chips() {
    check(&[128, 32], &[false, true], &[AllGather]);
    check(&[128, 32], &[true, true], &[ReduceScatter]);
}

#[test]
#[ignore = "long: all collectives on 4,096 chips"]
fn long_four_thousand_chips() {
    for wrap in [[false, true], [true, true], [false, false]] {
        check(&[128, 32], &wrap, &KINDS);
    }
}

/// Messages of one collective delay those of another only on links that both use.
#[test]
fn disjoint_groups_do_not_wait_for_one_another() {
    let network = torus(&[16, 16], &[true, true]);
    let row = seconds(&network, AllGather, V, &first(16));
    assert_eq!(row, seconds(&torus(&[16], &[true]), AllGather, V, &first(16)));
    let spread: Vec<usize> = (0..8).map(|member| 2 * member).collect();
    let near: Vec<usize> = first(8);
    let [spread, near] = [spread, near].map(|members| seconds(&network, AllGather, V, &members));
    // Every second chip of a ring: half the rate. The first eight: a line, which has half the rate.
    let (rate, members) = (W, 8.0);
    let expected = (members - 1.0) / members * V as f64 / rate;
    assert!((spread / expected - 1.0).abs() < 0.01 && (near / expected - 1.0).abs() < 0.01);
}

/// A shard in chunks is forwarded before all of it is there, so the latencies of hops overlap.
#[test]
fn chunks_hide_latency() {
    let ring = torus(&[64], &[true]);
    let bytes = 64 * 200_000;
    let of = |chunks| {
        let options = Options { chunks, ..Options::default() };
        simulate(&ring, AllGather, bytes, &first(64), options).unwrap()
    };
    let (whole, chunked) = (of(1), of(4));
    let transfer = 63.0 / 64.0 * bytes as f64 / (2.0 * W);
    assert!(whole.seconds > 1.25 * transfer, "{whole:?} {transfer}");
    assert!((1.0..1.1).contains(&(chunked.seconds / transfer)), "{chunked:?} {transfer}");
    assert_eq!(chunked.messages, 4 * whole.messages);
}

/// For two collectives at once there is a closed form on rings only, where both keep all links busy.
/// Elsewhere one uses what the other leaves idle.
#[test]
fn two_at_once_use_idle_links() {
    let share = |dims: &[usize], wrap: bool| {
        let network = torus(dims, &vec![wrap; dims.len()]);
        let members = first(dims.iter().product());
        let options = Options { together: 2, ..Options::default() };
        let both = simulate(&network, AllReduce, V, &members, options).unwrap().seconds;
        both / (2.0 * seconds(&network, AllReduce, V, &members))
    };
    assert!((share(&[8], true) - 1.0).abs() < 0.01);
    let (square, line) = (share(&[8, 8], true), share(&[8], false));
    assert!((0.88..0.90).contains(&square) && (0.95..0.97).contains(&line), "{square} {line}");
}

/// No link carries more than its rate: the busiest of an all-gather carries all but one shard.
#[test]
fn nothing_is_faster_than_the_busiest_link() {
    for dims in [[8, 8], [16, 4]] {
        let network = torus(&dims, &[true, true]);
        let members = first(dims[0] * dims[1]);
        let least = (1.0 - 1.0 / members.len() as f64) * V as f64 / (4.0 * W);
        for network in [network.clone(), network.rotated()] {
            assert!(seconds(&network, AllGather, V, &members) > least);
        }
    }
}

#[test]
fn what_cannot_be_simulated_is_named() {
    let of = |machine: &str, kind, members: &[usize]| {
        let network = Machine::parse(machine).unwrap().network;
        simulate(&network, kind, V, members, Options::default()).unwrap_err().to_string()
    };
    assert!(of("h100:8", AllGather, &first(8)).contains("a switch"));
    assert!(of("2xv4-128", AllGather, &first(128)).contains("several slices"));
    assert!(of("v4-128", AllToAll, &first(4)).contains("all-to-all"));
    assert!(of("v4-128", AllGather, &[0, 1, 5]).contains("no grid"));
}
