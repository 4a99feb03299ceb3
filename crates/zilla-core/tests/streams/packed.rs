//! `send -c` and `-e`: what is received is stored as its sender has compressed it, in a pointer or
//! in a block, whatever the receiving dataset would make of it.

use super::raw::KEY;
use super::*;
use zilla_core::dsl::Setting;
use zilla_core::zap::Value;
use zilla_ondisk::blkptr::BlkPtr;

fn with(fs: &str, snap: &str, compression: u64) -> RecvOpts {
    let settings = vec![("compression".to_owned(), Setting::Local(Value::u64(compression)))];
    RecvOpts { settings, ..to(fs, snap) }
}

/// How a block is stored; of one in its pointer all of it.
fn how(bp: &BlkPtr) -> (u8, u64, u64, Option<Vec<u8>>) {
    let within = bp.is_embedded().then(|| bp.embedded_data().to_vec());
    (bp.compress(), bp.lsize(), if bp.is_embedded() { 0 } else { bp.psize() }, within)
}

impl Pool {
    /// Files of which so little is left when they are compressed that it lies in their pointers.
    async fn same_bytes(&self, fs: &str, names: std::ops::Range<u8>) {
        let zfs = self.mount(fs).await;
        for i in names {
            let file = NewFile::new(0o100644, Cred { uid: 0, gid: 0 });
            let name = format!("same{i}").into_bytes();
            let h = zfs.create(zfs.root(), &name, file).await.unwrap().0;
            zfs.write(h.id(), 0, &Bytes::from(vec![i; 3000 + usize::from(i)]), false).await.unwrap();
        }
        self.spa.sync().await.unwrap();
    }
}

/// As the property has them.
const OFF: u64 = 2;
const GZIP_6: u64 = 10;
const ZSTD_7: u64 = 16 | 7 << 7;

#[test]
fn blocks_stay_as_their_sender_has_compressed_them() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/a").await;
        p.create_crypt("tank/crypt", 8, KEY).await;
        p.fill("tank/a", 0, 40, 1).await;
        p.same_bytes("tank/a", 1..6).await;
        p.snapshot("tank/a@one").await;
        p.fill("tank/a", 5, 20, 2).await;
        p.same_bytes("tank/a", 10..15).await;
        p.snapshot("tank/a@two").await;
        let from = p.from("tank/a@one").await;
        let plain = [
            p.send("tank/a@one", &SendOpts::default()).await,
            p.send("tank/a@two", &SendOpts { from, ..SendOpts::default() }).await,
        ];
        p.receive(&plain[0], with("tank/gzip", "one", GZIP_6)).await.unwrap();
        p.receive(&plain[1], to("tank/gzip", "two")).await.unwrap();
        let packs = SendOpts { compressed: true, embed: true, large_blocks: true, ..SendOpts::default() };
        let packed = [
            p.send("tank/gzip@one", &packs).await,
            p.send("tank/gzip@two", &SendOpts { from: p.from("tank/gzip@one").await, ..packs }).await,
        ];
        for (fs, compression) in [("tank/off", OFF), ("tank/zstd", ZSTD_7), ("tank/crypt/in", ZSTD_7)] {
            p.receive(&packed[0], with(fs, "one", compression)).await.unwrap();
            p.receive(&packed[1], to(fs, "two")).await.unwrap();
            for snap in ["one", "two"] {
                let theirs = p.pointers(&format!("tank/gzip@{snap}")).await;
                let ours = p.pointers(&format!("{fs}@{snap}")).await;
                assert_eq!(theirs.len(), ours.len(), "{fs}@{snap}");
                let in_pointers = theirs.iter().filter(|(_, bp)| bp.is_embedded()).count();
                assert!(in_pointers > 3 && theirs.len() > in_pointers + 30, "{in_pointers}");
                for ((at, theirs), (_, ours)) in theirs.iter().zip(&ours) {
                    // What is encrypted does not lie in pointers.
                    if theirs.is_embedded() && fs.starts_with("tank/crypt") {
                        continue;
                    }
                    assert_eq!(how(theirs), how(ours), "{fs}@{snap}: {at}");
                }
                let sent = p.plain(&format!("tank/a@{snap}")).await;
                same(&sent, &p.plain(&format!("{fs}@{snap}")).await, fs);
            }
        }
        // What is written to it from then on is compressed as the receiver has it.
        p.fill("tank/off", 10, 5, 3).await;
        p.fill("tank/a", 10, 5, 3).await;
        p.snapshot("tank/off@three").await;
        let kinds: Vec<u8> = p.pointers("tank/off@three").await.iter().map(|(_, bp)| bp.compress()).collect();
        assert!(kinds.contains(&(OFF as u8)) && kinds.contains(&(GZIP_6 as u8)), "{kinds:?}");
        p.export().await;
    });
    zdb_clean(dir.path(), "tank");
}
