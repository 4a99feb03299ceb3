//! `receive -c`: blocks of which no copy is good are mended from a stream of their snapshot, and
//! from nothing else.

use super::raw::{KEY, raw};
use super::*;
use std::os::unix::fs::FileExt;
use zilla_core::check::{CheckOpts, check_pool};
use zilla_core::dsl::Setting;
use zilla_core::send::{Heal, Healed};
use zilla_core::types::{Bookmark, ObjectId};
use zilla_core::zap::Value;
use zilla_ondisk::blkptr::BlkPtr;

/// Of zstd-7 and others, as the property has them.
const COMPRESSIONS: &[(&str, &str, u64)] =
    &[("tank/off", "off", 2), ("tank/gzip", "gzip-6", 10), ("tank/zstd", "zstd-7", 16 | 7 << 7)];

impl Pool {
    async fn heal(&self, stream: &[u8], snap: &str) -> Result<Healed> {
        let mut source = Bytes::copy_from_slice(stream);
        let mut reader = RecordReader::new(&mut source);
        let Some((Record::Begin(begin), _)) = reader.begin().await? else { panic!("no stream") };
        Heal::begin(self.dsl(), begin, reader.order(), snap).await?.records(&mut reader).await
    }

    /// The pointers of a snapshot's files, holes left out.
    pub async fn pointers(&self, snap: &str) -> Vec<(Bookmark, BlkPtr)> {
        let ds = self.dsl().by_name(snap).await.unwrap();
        let os = self.dsl().objset(&ds).await.unwrap();
        let mut out = Vec::new();
        for (id, of) in meaning(&self.plain(snap).await) {
            let is_file = of.keys().any(|k| k.starts_with("type 19 "));
            if !is_file {
                continue;
            }
            let dn = os.hold_wait(ObjectId(id)).await.unwrap();
            for blkid in 0..=dn.phys().maxblkid {
                dn.load(0, blkid).await.unwrap();
                let bp = zilla_core::dmu::resident(|| dn.block_pointer(blkid)).await.unwrap();
                if let Some(bp) = bp.filter(|bp| !bp.is_hole()) {
                    out.push((Bookmark { objset: os.id(), object: id, level: 0, blkid }, bp));
                }
            }
        }
        out
    }

    /// Where the blocks of a snapshot's files are.
    async fn blocks(&self, snap: &str) -> Vec<(Bookmark, BlkPtr)> {
        let mut out = self.pointers(snap).await;
        out.retain(|(_, bp)| !bp.is_embedded());
        assert!(out.len() > 30, "{snap}: {} blocks", out.len());
        out
    }

    async fn findings(&self) -> Vec<String> {
        check_pool(&self.spa, CheckOpts { every_copy: true }).await.unwrap().findings
    }
}

/// What lies at a block's first copy on the pool's one disk.
fn stored(dir: &Path, bp: &BlkPtr) -> Vec<u8> {
    let disk = std::fs::File::open(dir.join("d0.img")).unwrap();
    let mut out = vec![0; bp.psize() as usize];
    disk.read_exact_at(&mut out, bp.dva(0).offset + (4 << 20)).unwrap();
    out
}

fn damage(dir: &Path, bp: &BlkPtr) {
    let disk = std::fs::File::options().write(true).open(dir.join("d0.img")).unwrap();
    let was = stored(dir, bp);
    let at = was.len() / 3;
    let bad: Vec<u8> = was[at..at + 100].iter().map(|b| !b).collect();
    disk.write_all_at(&bad, bp.dva(0).offset + (4 << 20) + at as u64).unwrap();
}

#[test]
fn damaged_blocks_are_mended_from_streams_of_their_snapshot_only() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    // Pools' blocks, and the streams that mend them.
    let mut places: Vec<(String, Vec<(Bookmark, BlkPtr)>)> = Vec::new();
    let (plain, packed, sealed) = env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/a").await;
        p.create_crypt("tank/crypt", 8, KEY).await;
        p.fill("tank/a", 0, 40, 1).await;
        p.fill("tank/crypt", 0, 40, 5).await;
        p.snapshot("tank/a@one").await;
        p.snapshot("tank/crypt@one").await;
        p.fill("tank/a", 5, 20, 2).await;
        p.snapshot("tank/a@two").await;
        let packs = SendOpts { compressed: true, embed: true, large_blocks: true, ..SendOpts::default() };
        let from = p.from("tank/a@one").await;
        let mut plain = Vec::new();
        let mut packed = Vec::new();
        for (out, how) in [(&mut plain, SendOpts::default()), (&mut packed, packs)] {
            out.push(p.send("tank/a@one", &how).await);
            out.push(p.send("tank/a@two", &SendOpts { from, ..how }).await);
        }
        let sealed = p.send("tank/crypt@one", &raw()).await;
        p.receive(&sealed, to("tank/raw", "one")).await.unwrap();
        p.load("tank/raw", KEY).await.unwrap();
        let mut names: Vec<&str> = vec!["tank/a", "tank/crypt/in"];
        for (fs, name, value) in COMPRESSIONS {
            let settings = vec![("compression".to_owned(), Setting::Local(Value::u64(*value)))];
            let opts = |snap| RecvOpts { settings: settings.clone(), ..to(fs, snap) };
            p.receive(&plain[0], opts("one")).await.unwrap_or_else(|e| panic!("{name}: {e}"));
            p.receive(&plain[1], to(fs, "two")).await.unwrap();
            names.push(fs);
        }
        p.receive(&plain[0], to("tank/crypt/in", "one")).await.unwrap();
        p.receive(&plain[1], to("tank/crypt/in", "two")).await.unwrap();
        for fs in names {
            for snap in ["one", "two"] {
                let name = format!("{fs}@{snap}");
                let blocks = p.blocks(&name).await;
                places.push((name, blocks));
            }
        }
        places.push(("tank/raw@one".into(), p.blocks("tank/raw@one").await));
        assert_eq!(p.findings().await, Vec::<String>::new());
        p.export().await;
        (plain, packed, sealed)
    });
    let kinds: std::collections::BTreeSet<u8> =
        places.iter().flat_map(|(_, b)| b.iter().map(|(_, bp)| bp.compress())).collect();
    assert!(kinds.is_superset(&[2, 10, 15, 16].into()), "{kinds:?}");
    let was: Vec<Vec<Vec<u8>>> =
        places.iter().map(|(_, b)| b.iter().map(|(_, bp)| stored(dir.path(), bp)).collect()).collect();
    for streams in [&plain, &packed] {
        // A third of what each snapshot has; those of "two" that are of "one" are mended there.
        let mut hurt = std::collections::BTreeSet::new();
        for (_, blocks) in &places {
            for (_, bp) in blocks.iter().step_by(3) {
                if hurt.insert(bp.dva(0).offset) {
                    damage(dir.path(), bp);
                }
            }
        }
        env.block_on(async {
            let p = Pool::open(&env, dir.path()).await;
            assert!(!p.findings().await.is_empty());
            // What is not of this snapshot, or needs a key that is not there, mends nothing.
            let no = |e: Result<Healed>, errno| assert!(e.as_ref().is_err_and(|e| e.is(errno)), "{e:?}");
            no(p.heal(&streams[0], "tank/a@two").await, Errno::NotSup);
            no(p.heal(&streams[0], "tank/raw@one").await, Errno::NotSup);
            no(p.heal(&streams[0], "tank/a@none").await, Errno::NoEnt);
            no(p.heal(&streams[0], "tank/a").await, Errno::NotSup);
            let locked = if std::ptr::eq(streams, &packed) { Errno::Inval } else { Errno::Access };
            no(p.heal(&streams[0], "tank/crypt/in@one").await, locked);
            // One that lies has the right name and other bytes.
            let lie: Vec<_> = records(&streams[0])
                .into_iter()
                .map(|(r, data)| match r {
                    Record::Write(_) => (r, data.iter().map(|b| b ^ 1).collect::<Vec<_>>().into()),
                    _ => (r, data),
                })
                .collect();
            let healed = p.heal(&rewritten(&lie), "tank/off@one").await.unwrap();
            assert!(healed.failed > 0 && healed.why.is_some() && healed.blocks == 0, "{healed:?}");
            p.load("tank/crypt", KEY).await.unwrap();
            let mut mended = 0;
            for fs in ["tank/a", "tank/off", "tank/gzip", "tank/zstd"] {
                for (i, snap) in ["one", "two"].into_iter().enumerate() {
                    let healed = p.heal(&streams[i], &format!("{fs}@{snap}")).await.unwrap();
                    assert_eq!(healed.failed, 0, "{fs}@{snap}: {:?}", healed.why);
                    mended += healed.blocks;
                }
            }
            for (i, snap) in ["one", "two"].into_iter().enumerate() {
                // Embedded blocks cannot be in what is encrypted.
                let healed = p.heal(&plain[i], &format!("tank/crypt/in@{snap}")).await.unwrap();
                assert_eq!(healed.failed, 0, "{snap}: {:?}", healed.why);
                mended += healed.blocks;
            }
            let healed = p.heal(&sealed, "tank/raw@one").await.unwrap();
            assert_eq!(healed.failed, 0, "raw: {:?}", healed.why);
            mended += healed.blocks;
            assert!(mended > 100 && mended <= hurt.len() as u64, "{mended} of {}", hurt.len());
            // What is whole is not touched.
            assert_eq!(p.heal(&sealed, "tank/raw@one").await.unwrap().blocks, 0);
            // Its files can be listed with its key only.
            p.load("tank/raw", KEY).await.unwrap();
            assert_eq!(p.findings().await, Vec::<String>::new());
            p.export().await;
        });
        for ((name, blocks), was) in places.iter().zip(&was) {
            for ((at, bp), was) in blocks.iter().zip(was) {
                assert!(stored(dir.path(), bp) == *was, "{name}: block {at} is not as it was");
            }
        }
        zdb_clean(dir.path(), "tank");
    }
}
