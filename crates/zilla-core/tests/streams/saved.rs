//! What an interrupted receive has kept is sent on, and goes on where it lies then, to the same
//! snapshot.

use super::raw::{KEY, raw};
use super::*;
use zilla_core::dsl::ResumeState;
use zilla_core::send::{Special, send_special};

impl Pool {
    /// What a receive into `fs` that was cut has noted, on disk.
    async fn noted(&self, fs: &str) -> ResumeState {
        self.spa.sync().await.unwrap();
        let ds = self.dsl().recv_partial(fs).await.unwrap().expect("something to go on from");
        self.dsl().resume_state(&ds).await.unwrap().expect("a note of how far it came")
    }

    /// `zfs send -S`
    async fn saved(&self, fs: &str, state: &ResumeState) -> Vec<u8> {
        let ds = self.dsl().recv_partial(fs).await.unwrap().unwrap();
        let from = match state.fromguid {
            Some(guid) => {
                let (s, is_clone) = self.dsl().recv_source(&ds, guid).await.unwrap();
                Some(From { guid, txg: s.phys().creation_txg, is_clone })
            }
            None => None,
        };
        let opts = SendOpts {
            from,
            large_blocks: state.largeblock,
            embed: state.embed,
            compressed: state.compress,
            raw: state.raw,
            resume: None,
        };
        let mut out = Vec::new();
        let special = Special { saved: Some(state.clone()), ..Special::default() };
        send_special(self.dsl(), &ds, &opts, &special, &mut out).await.unwrap();
        out
    }

    async fn partial(&self, raw: &[u8], fs: &str, snap: &str) {
        let opts = RecvOpts { resumable: true, ..to(fs, snap) };
        let done = self.receive(raw, opts).await;
        assert!(done.as_ref().is_err_and(|e| e.is(Errno::Canceled)), "{fs}@{snap}: {done:?}");
    }
}

/// Objects a stream tells of: the last, and where its last block is.
fn last_told(stream: &[u8]) -> (u64, u64) {
    let mut source = Bytes::copy_from_slice(stream);
    zilla_env::block_on(async {
        let mut r = RecordReader::new(&mut source);
        r.begin().await.unwrap().unwrap();
        let mut last = (0, 0);
        loop {
            match r.next().await {
                Ok((Record::Object(o), _)) => last = last.max((o.object, 0)),
                Ok((Record::Write(w), _)) => last = last.max((w.object, w.offset)),
                Ok((Record::WriteEmbedded(w), _)) => last = last.max((w.object, w.offset)),
                Ok((Record::Spill(s), _)) => last = last.max((s.object, 0)),
                Ok((Record::End(_), _)) => panic!("what is not whole has an end"),
                Ok(_) => {}
                Err(e) => {
                    assert!(e.is(Errno::Canceled), "{e}");
                    return last;
                }
            }
        }
    })
}

#[test]
fn what_was_received_so_far_goes_on_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/plain").await;
        p.create_crypt("tank/crypt", 8, KEY).await;
        for fs in ["tank/plain", "tank/crypt"] {
            p.fill(fs, 0, 40, 1).await;
        }
        p.snapshot("tank/plain@one").await;
        p.snapshot("tank/crypt@one").await;
        for fs in ["tank/plain", "tank/crypt"] {
            // Changes of objects before and behind wherever it is cut, and numbers that are free or
            // another's.
            p.fill(fs, 2, 30, 2).await;
            p.remove(fs, 33, 5).await;
            p.fill(fs, 50, 3, 3).await;
        }
        p.snapshot("tank/plain@two").await;
        p.snapshot("tank/crypt@two").await;
        let packed = SendOpts { compressed: true, embed: true, large_blocks: true, ..SendOpts::default() };
        for (k, (fs, opts)) in
            [("tank/plain", SendOpts::default()), ("tank/plain", packed), ("tank/crypt", raw())]
                .into_iter()
                .enumerate()
        {
            let from = p.from(&format!("{fs}@one")).await;
            let whole = p.send(&format!("{fs}@one"), &opts).await;
            let step = p.send(&format!("{fs}@two"), &SendOpts { from, ..opts }).await;
            for (n, part) in [3, 18, 37, 64, 99].into_iter().enumerate() {
                let (here, there) = (format!("tank/r{k}{n}"), format!("tank/s{k}{n}"));
                for (stream, snap, from) in [(&whole, "one", None), (&step, "two", from)] {
                    let what = format!("{fs}@{snap} at {part} %, {opts:?}");
                    p.partial(&stream[..stream.len() * part / 100], &here, snap).await;
                    let state = p.noted(&here).await;
                    let saved = p.saved(&here, &state).await;
                    let last = last_told(&saved);
                    assert!(last <= (state.object, state.offset), "{what}: {last:?} of {state:?}");
                    // Without -s nothing of it stays.
                    assert!(p.receive(&saved, to(&there, snap)).await.is_err());
                    assert!(p.dsl().recv_partial(&there).await.is_ok_and(|d| d.is_none()) || snap == "one");
                    p.partial(&saved, &there, snap).await;
                    let noted = p.noted(&there).await;
                    assert_eq!((noted.toguid, &noted.toname), (state.toguid, &state.toname), "{what}");
                    assert!(
                        (noted.object, noted.offset) <= (state.object, state.offset),
                        "{what}: {noted:?}"
                    );
                    // Once more, from there.
                    let again = p.saved(&there, &noted).await;
                    assert_eq!(last_told(&again), last, "{what}");
                    for (fs_to, state) in [(&here, state), (&there, noted)] {
                        let resume = Some(Resume::of(&state));
                        let rest = p.send(&format!("{fs}@{snap}"), &SendOpts { from, resume, ..opts }).await;
                        let opts_in = RecvOpts { resumable: true, ..to(fs_to, snap) };
                        p.receive(&rest, opts_in).await.unwrap_or_else(|e| panic!("{what}: {e}"));
                    }
                }
                for fs_to in [&here, &there] {
                    if opts.raw {
                        p.load(fs_to, KEY).await.unwrap();
                    }
                    for snap in ["one", "two"] {
                        let sent = p.plain(&format!("{fs}@{snap}")).await;
                        same(&sent, &p.plain(&format!("{fs_to}@{snap}")).await, &format!("{fs_to}@{snap}"));
                    }
                    // There is room for some of them.
                    let fs_to = fs_to.clone();
                    let op: Op<()> = Box::new(move |dsl, tx| {
                        Box::pin(async move {
                            let snaps = ["one", "two"].map(|s| format!("{fs_to}@{s}"));
                            dsl.destroy_snapshots(&tx, &snaps, false).await?;
                            dsl.destroy_head(&tx, &fs_to).await
                        })
                    });
                    p.task(op).await.unwrap();
                }
            }
        }
        p.export().await;
    });
    zdb_clean(dir.path(), "tank");
}
