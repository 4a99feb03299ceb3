//! Streams cut and changed at random bytes, over a hundred of them, raw and plain, whole and
//! incremental: each leaves nothing, or what goes on to the same snapshot.

use super::raw::{KEY, raw};
use super::*;

const TRIES: u64 = 112;

/// Numbers that look random and are the same each time.
pub fn mixed(n: u64) -> u64 {
    let mut x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bf0_3635;
    for shift in [31, 27, 33] {
        x = (x ^ (x >> shift)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    x ^ (x >> 29)
}

/// Over what the last try has left in the head.
fn into(target: &str, snap: &str) -> RecvOpts {
    RecvOpts { force: target.ends_with("-to"), ..to(target, snap) }
}

#[test]
fn streams_cut_or_changed_at_random_bytes_leave_nothing_or_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/plain").await;
        p.create_crypt("tank/crypt", 8, KEY).await;
        for fs in ["tank/plain", "tank/crypt"] {
            p.fill(fs, 0, 9, 1).await;
        }
        p.snapshot("tank/plain@one").await;
        p.snapshot("tank/crypt@one").await;
        for fs in ["tank/plain", "tank/crypt"] {
            p.fill(fs, 3, 5, 2).await;
        }
        p.snapshot("tank/plain@two").await;
        p.snapshot("tank/crypt@two").await;
        let mut kinds = Vec::new();
        for (fs, opts) in
            [("tank/plain", SendOpts { compressed: true, ..SendOpts::default() }), ("tank/crypt", raw())]
        {
            let from = p.from(&format!("{fs}@one")).await;
            let whole = p.send(&format!("{fs}@one"), &opts).await;
            let step = p.send(&format!("{fs}@two"), &SendOpts { from, ..opts }).await;
            let base = if opts.raw { "tank/crypt-to" } else { "tank/plain-to" };
            p.receive(&whole, to(base, "one")).await.unwrap();
            kinds.push((fs, "one", opts, whole, "tank/new"));
            kinds.push((fs, "two", SendOpts { from, ..opts }, step, base));
        }
        let (mut resumed, mut nothing) = (0, 0);
        for n in 0..TRIES {
            let &(fs, snap, opts, ref stream, target) = &kinds[(n % 4) as usize];
            let at = (mixed(n) % stream.len() as u64) as usize;
            let resumable = n / 4 % 2 == 0;
            let opts_in = RecvOpts { resumable, ..into(target, snap) };
            let what = format!("try {n}: {fs}@{snap} at {at} of {}", stream.len());
            let bad = if n / 8 % 2 == 0 {
                stream[..at].to_vec()
            } else {
                let mut bad = stream.clone();
                bad[at] ^= 1 << (n % 8);
                bad
            };
            // A head of BEGIN that was changed can be another stream's; the first record after it
            // then says so.
            let done = p.try_receive(&bad, opts_in.clone()).await;
            assert!(done.is_err(), "{what}");
            p.spa.sync().await.unwrap();
            let left = match p.dsl().recv_partial(target).await {
                Ok(left) => left,
                Err(e) => {
                    assert!(e.is(Errno::NoEnt), "{what}: {e}");
                    None
                }
            };
            if let Some(left) = left {
                assert!(resumable, "{what}: something is left");
                let state = p.dsl().resume_state(&left).await.unwrap().unwrap();
                let resume = Some(Resume { object: state.object, offset: state.offset });
                let same_stream =
                    state.toguid == p.dsl().by_name(&format!("{fs}@{snap}")).await.unwrap().guid();
                if same_stream {
                    let rest = p.send(&format!("{fs}@{snap}"), &SendOpts { resume, ..opts }).await;
                    p.receive(&rest, opts_in).await.unwrap_or_else(|e| panic!("{what}: {e}"));
                    resumed += 1;
                    p.forget(target, snap).await;
                } else {
                    p.abandon(left).await;
                }
            } else {
                nothing += 1;
            }
        }
        assert!(resumed > 20 && nothing > 20, "{resumed} and {nothing}");
        // After all of that they go through as they are.
        for &(fs, snap, _, ref stream, target) in &kinds {
            p.receive(stream, into(target, snap)).await.unwrap();
            if fs.ends_with("crypt") {
                p.load(target, KEY).await.unwrap();
            }
            same(&p.plain(&format!("{fs}@{snap}")).await, &p.plain(&format!("{target}@{snap}")).await, fs);
            p.forget(target, snap).await;
        }
        p.export().await;
        zdb_clean(dir.path(), "tank");
    });
}

impl Pool {
    /// Receives what may not even begin.
    async fn try_receive(&self, raw: &[u8], opts: RecvOpts) -> Result<()> {
        let mut source = Bytes::copy_from_slice(raw);
        let mut reader = RecordReader::new(&mut source);
        let cut = || zilla_core::error::Error::os(Errno::Canceled, "no stream");
        let Some((Record::Begin(begin), payload)) = reader.begin().await? else { return Err(cut()) };
        let mut r = Receive::begin(self.dsl(), begin, &payload, opts).await?;
        let done = match r.records(&mut reader).await {
            Ok(()) => r.end().await.map(drop),
            Err(e) => Err(e),
        };
        if done.is_err() {
            r.abort().await?;
        }
        done
    }

    /// Takes away what was received.
    async fn forget(&self, fs: &'static str, snap: &'static str) {
        let op: Op<()> = Box::new(move |dsl, tx| {
            Box::pin(async move {
                dsl.destroy_snapshots(&tx, &[format!("{fs}@{snap}")], false).await?;
                if fs.ends_with("-to") {
                    return Ok(());
                }
                dsl.destroy_head(&tx, fs).await
            })
        });
        self.task(op).await.unwrap();
    }

    async fn abandon(&self, ds: Arc<zilla_core::dsl::DslDataset>) {
        let op: Op<()> = Box::new(move |dsl, tx| Box::pin(async move { dsl.recv_abort(&tx, &ds).await }));
        self.task(op).await.unwrap();
    }
}
