//! Calls and answers made up, without a server.

use super::*;
use crate::rpc::{self, Claim};
use crate::xdr::In;
use futures_util::FutureExt;
use std::cell::Cell;
use zilla_env::block_on;

const MKDIR: u32 = 9;

fn peer(host: u32, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::from((0x7f00_0000 + host).to_be_bytes()), port)
}

fn call(xid: u32, procedure: u32, args: &[u8]) -> Call {
    let args = In(Bytes::copy_from_slice(args));
    Call { xid, program: 100_003, version: 3, procedure, claim: Claim::Nobody, args }
}

/// An answer with this status and as many words behind it.
fn reply(xid: u32, status: u32, words: u32) -> Reply {
    let mut reply = rpc::accepted(xid);
    reply.head.u32(status);
    (0..words).for_each(|n| {
        reply.head.u32(n);
    });
    reply
}

/// Whether the call is done; else it was answered from the cache, with the bytes that are expected.
fn is_done(cache: &ReplyCache, peer: SocketAddr, call: Call, first: &Reply) -> bool {
    let done = Cell::new(false);
    let answer = block_on(cache.once(peer, call, async |_| {
        done.set(true);
        Reply { head: Out(first.head.0.clone()), data: Vec::new() }
    }));
    assert_eq!(answer.head.0, first.head.0);
    done.get()
}

fn with(xid: u32, status: u32) -> Reply {
    reply(xid, status, 3)
}

#[test]
fn the_first_answer_comes_back() {
    let cache = ReplyCache::default();
    let ok = with(5, 0);
    assert!(is_done(&cache, peer(1, 700), call(5, MKDIR, b"name"), &ok));
    for _ in 0..3 {
        assert!(!is_done(&cache, peer(1, 700), call(5, MKDIR, b"name"), &ok));
    }
    let mapped = SocketAddr::new("::ffff:127.0.0.1".parse().unwrap(), 700);
    assert!(!is_done(&cache, mapped, call(5, MKDIR, b"name"), &ok));
}

#[test]
fn whatever_differs_is_another_call() {
    let cache = ReplyCache::default();
    let long = |last: u8| [&[0; SUMMED - 1][..], &[last]].concat();
    let user = |uid| Claim::User { uid, gid: 1, groups: Vec::new() };
    let as_user = |uid| Call { claim: user(uid), ..call(5, MKDIR, b"name") };
    let all = [
        (peer(1, 700), call(5, MKDIR, b"name")),
        (peer(1, 701), call(5, MKDIR, b"name")),
        (peer(2, 700), call(5, MKDIR, b"name")),
        (peer(1, 700), call(6, MKDIR, b"name")),
        (peer(1, 700), call(5, MKDIR + 1, b"name")),
        (peer(1, 700), call(5, MKDIR, b"mane")),
        (peer(1, 700), call(5, MKDIR, b"name\0\0\0\0")),
        (peer(1, 700), call(5, MKDIR, &long(1))),
        (peer(1, 700), call(5, MKDIR, &long(2))),
        (peer(1, 700), as_user(1)),
        (peer(1, 700), as_user(2)),
    ];
    let again = |c: &Call| Call { claim: c.claim.clone(), args: c.args.clone(), ..*c };
    for (peer, call) in &all {
        assert!(is_done(&cache, *peer, again(call), &with(call.xid, 0)), "{call:?} of {peer}");
    }
    for (peer, call) in &all {
        assert!(!is_done(&cache, *peer, again(call), &with(call.xid, 0)), "{call:?} of {peer}");
    }
}

#[test]
fn only_changes_enter() {
    let kept: Vec<u32> = (0..22).filter(|p| enters(*p) == Some(Enters::Answered)).collect();
    assert_eq!(kept, [2, 8, 9, 10, 11, 12, 13, 14, 15]);
    let cache = ReplyCache::default();
    for procedure in (0..22).filter(|p| !kept.contains(p)) {
        for _ in 0..2 {
            assert!(is_done(&cache, peer(1, 700), call(5, procedure, b""), &with(5, 0)), "{procedure}");
        }
    }
    assert!(cache.kept.lock().calls.is_empty());
}

#[test]
fn errors_are_kept_and_refusals_are_not() {
    let cache = ReplyCache::default();
    for (xid, status) in [(1, 17), (2, 2), (3, 5), (4, 28)] {
        assert!(is_done(&cache, peer(1, 700), call(xid, MKDIR, b""), &with(xid, status)));
        assert!(!is_done(&cache, peer(1, 700), call(xid, MKDIR, b""), &with(xid, status)), "{status}");
    }
    let refused = [13, 30, 70, 10001, 10008].map(|status| with(9, status));
    let garbage = rpc::refused(9, rpc::Refusal::Garbage);
    let large = reply(9, 0, LONGEST as u32 / 4);
    for answer in refused.iter().chain([&garbage, &large]) {
        for _ in 0..2 {
            assert!(is_done(&cache, peer(1, 700), call(9, MKDIR, b""), answer), "{answer:?}");
        }
    }
    assert_eq!(cache.kept.lock().calls.len(), 4);
}

/// What is counted is what there is.
fn check(cache: &ReplyCache) -> usize {
    let kept = cache.kept.lock();
    let answered = |s: &State| if let State::Answered(r) = s { Some(r.len()) } else { None };
    let lens: Vec<usize> = kept.calls.values().filter_map(answered).collect();
    assert_eq!(kept.bytes, lens.iter().sum::<usize>());
    assert_eq!(kept.by_age.len(), lens.len());
    assert_eq!(kept.of.values().map(VecDeque::len).sum::<usize>(), lens.len());
    assert!(kept.of.values().all(|ages| !ages.is_empty() && ages.len() <= OF_ONE));
    assert!(lens.len() <= ENTRIES && kept.bytes <= BYTES);
    lens.len()
}

#[test]
fn an_address_pushes_out_its_own_oldest() {
    let cache = ReplyCache::default();
    assert!(is_done(&cache, peer(2, 700), call(1, MKDIR, b""), &with(1, 0)));
    let xids = OF_ONE as u32 + 10;
    for xid in 0..xids {
        let port = 700 + (xid % 7) as u16;
        assert!(is_done(&cache, peer(1, port), call(xid, MKDIR, b""), &with(xid, 0)));
    }
    assert_eq!(check(&cache), OF_ONE + 1);
    assert!(!is_done(&cache, peer(2, 700), call(1, MKDIR, b""), &with(1, 0)));
    assert!(!is_done(&cache, peer(1, 703), call(10, MKDIR, b""), &with(10, 0)), "the oldest that stays");
    assert!(is_done(&cache, peer(1, 702), call(9, MKDIR, b""), &with(9, 0)), "the youngest that went");
}

#[test]
fn all_addresses_together_are_bounded_in_number_and_bytes() {
    for words in [3, (LONGEST - 28) as u32 / 4] {
        let cache = ReplyCache::default();
        let most = ENTRIES.min(BYTES / (28 + 4 * words as usize)) as u32;
        for n in 0..most + 100 {
            assert!(is_done(&cache, peer(n, 700), call(n, MKDIR, b""), &reply(n, 0, words)));
        }
        assert_eq!(check(&cache), most as usize);
        assert!(!is_done(&cache, peer(100, 700), call(100, MKDIR, b""), &reply(100, 0, words)));
        assert!(is_done(&cache, peer(99, 700), call(99, MKDIR, b""), &reply(99, 0, words)));
        check(&cache);
    }
}

#[test]
fn answers_grow_old() {
    let cache = ReplyCache::default();
    for xid in 0..3 {
        assert!(is_done(&cache, peer(1, 700), call(xid, MKDIR, b""), &with(xid, 0)));
    }
    let key = cache.key(peer(1, 700), &call(1, MKDIR, b""));
    let now = Instant::now();
    assert!(matches!(cache.ask(key, now + LASTS / 2), Known::Answered(_)));
    assert_eq!(check(&cache), 3);
    assert!(matches!(cache.ask(key, now + LASTS), Known::New(_)));
    assert_eq!(check(&cache), 0);
}

#[test]
fn who_sends_again_what_is_under_way_waits_for_its_answer() {
    for (procedure, stays) in [(MKDIR, 1), (nfs::WRITE, 0)] {
        let cache = ReplyCache::default();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let first = cache.once(peer(1, 700), call(5, procedure, b""), async |_| {
            ended.await.unwrap();
            with(5, 0)
        });
        let again = || cache.once(peer(1, 700), call(5, procedure, b""), async |_| panic!("done twice"));
        let (mut first, mut second, mut third) = (Box::pin(first), Box::pin(again()), Box::pin(again()));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        end.send(()).unwrap();
        assert!(second.as_mut().now_or_never().is_none());
        let answer = block_on(first).head.0;
        assert_eq!(block_on(second).head.0, answer);
        assert_eq!(check(&cache), stays);
        // Who came before it ended and was not asked yet.
        if stays == 1 {
            assert_eq!(third.as_mut().now_or_never().unwrap().head.0, answer);
        }
        assert_eq!(cache.kept.lock().calls.len(), stays);
    }
}

#[test]
fn who_waits_for_what_ends_without_an_answer_does_it() {
    let cache = ReplyCache::default();
    let first = cache.once(peer(1, 700), call(5, MKDIR, b""), async |_| std::future::pending().await);
    let second = cache.once(peer(1, 700), call(5, MKDIR, b""), async |_| with(5, 17));
    let (mut first, mut second) = (Box::pin(first), Box::pin(second));
    assert!(first.as_mut().now_or_never().is_none());
    assert!(second.as_mut().now_or_never().is_none());
    drop(first);
    assert_eq!(block_on(second).head.0, with(5, 17).head.0);
    assert_eq!(check(&cache), 1);
}
