//! Records that say what no sync could put down, or what would be put where no sender may write:
//! each is refused where it is told, because a sync that fails stops the whole pool.

use super::lies::{Rec, records, stream, stream_in};
use super::raw::{KEY, raw};
use super::*;
use zilla_codec::checksum::Checksum;
use zilla_codec::compress::Compress;
use zilla_core::types::ObjectId;
use zilla_core::zap::Zap;
use zilla_ondisk::ByteOrder;
use zilla_ondisk::object_type::{DMU_OT_DNODE, DMU_OT_OBJSET, DMU_OT_SA};
use zilla_ondisk::stream::{Begin, End, Free, Object, RECORD_SIZE, Spill, Write, WriteEmbedded};

const FILE: u32 = 19;
const DIRECTORY: u32 = 20;
/// A number that no file of these tests has.
const NEW: u64 = 5000;

fn rec(record: &Record, payload: Vec<u8>) -> Rec {
    (record.encode().to_vec(), payload.into())
}

fn object(o: Object) -> Rec {
    let o = Object { object: NEW, otype: FILE, blksz: 512, dn_slots: o.dn_slots.max(1), ..o };
    rec(&Record::Object(o), vec![0x5a; (o.bonuslen as usize).next_multiple_of(8)])
}

fn spill(object: u64) -> Rec {
    let s = Spill { object, length: 512, ..Spill::default() };
    rec(&Record::Spill(s), [[0xff; 8], [0; 8]].concat().repeat(32))
}

fn write(object: u64, compress: Compress, len: usize) -> Rec {
    let packed = compress != Compress::Off;
    let w = Write {
        object,
        otype: FILE,
        logical_size: 512,
        compressiontype: if packed { compress as u8 } else { 0 },
        compressed_size: if packed { len as u64 } else { 0 },
        ..Write::default()
    };
    rec(&Record::Write(w), vec![1; len])
}

fn embedded(object: u64, compress: Compress) -> Rec {
    let w = WriteEmbedded {
        object,
        length: 512,
        compression: compress as u8,
        lsize: if compress == Compress::Off { 16 } else { 512 },
        psize: 16,
        ..WriteEmbedded::default()
    };
    rec(&Record::WriteEmbedded(w), vec![1; 16])
}

fn free(object: u64) -> Rec {
    rec(&Record::Free(Free { object, offset: 0, length: 512, ..Free::default() }), Vec::new())
}

/// The records of a stream, and some more before its end.
fn and(honest: &[Rec], more: &[Rec]) -> Vec<u8> {
    let mut told = honest.to_vec();
    let end = told.len() - 1;
    told.splice(end..end, more.iter().cloned());
    stream(&told)
}

impl Pool {
    /// The pool has refused a stream, and goes on.
    async fn refuses(&self, told: &[u8], fs: &str, why: &str) {
        let done = self.receive(told, to(fs, "lie")).await;
        assert!(done.as_ref().is_err_and(|e| e.to_string().contains(why)), "{why}: {done:?}");
        self.spa.sync().await.unwrap();
        assert!(self.spa.suspended().is_none(), "{why}: it is suspended");
    }
}

#[test]
fn what_no_sync_could_put_down_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/a").await;
        p.create_crypt("tank/crypt", 8, KEY).await;
        p.fill("tank/a", 0, 5, 1).await;
        p.snapshot("tank/a@one").await;
        let honest = records(&p.send("tank/a@one", &SendOpts::default()).await);
        let bonus = |kind: u8, len| Object { bonustype: kind.into(), bonuslen: len, ..Object::default() };
        for (more, why) in [
            (vec![object(bonus(DMU_OT_SA, 320)), spill(NEW)], "no room for a spill block"),
            // Three pointers to blocks and no bonus leave none either.
            (vec![object(Object::default()), spill(NEW)], "no room for a spill block"),
            (vec![object(bonus(DMU_OT_DNODE, 8)), spill(NEW)], "no such type"),
            (vec![object(bonus(DMU_OT_OBJSET, 8)), spill(NEW)], "no such type"),
        ] {
            p.refuses(&and(&honest, &more), "tank/new", why).await;
            p.refuses(&and(&honest, &more), "tank/crypt/new", why).await;
        }
        // Those that count what users have.
        for object in [u64::MAX, u64::MAX - 1, u64::MAX - 2, 0] {
            for more in [
                write(object, Compress::Off, 512),
                free(object),
                spill(object),
                embedded(object, Compress::Off),
            ] {
                p.refuses(&and(&honest, &[more]), "tank/new", "does not exist").await;
            }
        }
        p.receive(&stream(&honest), to("tank/new", "one")).await.unwrap();
        p.export().await;
    });
    zdb_clean(dir.path(), "tank");
}

#[test]
fn what_needs_a_feature_that_the_pool_lacks_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let few =
            ["async_destroy", "embedded_data", "extensible_dataset", "hole_birth", "spacemap_histogram"];
        let p = Pool::create_with(&env, dir.path(), Some(few.map(str::to_owned).into())).await;
        p.create_fs("tank/a").await;
        p.fill("tank/a", 0, 5, 1).await;
        p.snapshot("tank/a@one").await;
        let honest = records(&p.send("tank/a@one", &SendOpts::default()).await);
        let file = || object(Object::default());
        for (more, feature) in [
            (vec![file(), write(NEW, Compress::Zstd, 64)], "zstd_compress"),
            (vec![file(), write(NEW, Compress::Lz4, 64)], "lz4_compress"),
            (vec![file(), embedded(NEW, Compress::Zstd)], "zstd_compress"),
            (vec![object(Object { compress: Compress::Zstd as u8, ..Object::default() })], "zstd_compress"),
            (vec![object(Object { checksumtype: Checksum::Sha512 as u8, ..Object::default() })], "sha512"),
            (vec![object(Object { checksumtype: Checksum::Blake3 as u8, ..Object::default() })], "blake3"),
            (vec![object(Object { dn_slots: 2, ..Object::default() })], "large_dnode"),
        ] {
            let told = and(&honest, &more);
            p.refuses(&told, "tank/new", &format!("It lacks the feature '{feature}'")).await;
        }
        p.receive(&stream(&honest), to("tank/new", "one")).await.unwrap();
        p.export().await;
    });
    zdb_clean(dir.path(), "tank");
}

/// It used to take away what a block was to be written as.
#[test]
fn a_raw_free_of_nothing_takes_nothing_away() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_crypt("tank/crypt", 8, KEY).await;
        p.fill("tank/crypt", 0, 5, 1).await;
        p.snapshot("tank/crypt@one").await;
        let sent = p.send("tank/crypt@one", &raw()).await;
        let mut told = Vec::new();
        for (head, payload) in records(&sent) {
            let decoded = Record::decode(head.as_slice().try_into().unwrap(), ByteOrder::NATIVE);
            told.push((head, payload));
            if let Ok(Record::Write(w)) = decoded {
                let f = Free { object: w.object, offset: w.offset, length: 0, ..Free::default() };
                told.push(rec(&Record::Free(f), Vec::new()));
            }
        }
        p.receive(&stream(&told), to("tank/b", "one")).await.unwrap();
        assert!(p.spa.suspended().is_none());
        p.load("tank/b", KEY).await.unwrap();
        same(&p.plain("tank/crypt@one").await, &p.plain("tank/b@one").await, "read with its key");
        p.export().await;
    });
    zdb_clean(dir.path(), "tank");
}

/// A block in its pointer does not say of what type it is, and was kept in its sender's order.
#[test]
fn embedded_blocks_of_the_other_order_are_put_into_ours() {
    let other = if ByteOrder::NATIVE == ByteOrder::Little { ByteOrder::Big } else { ByteOrder::Little };
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/a").await;
        p.snapshot("tank/a@one").await;
        let sent = p.send("tank/a@one", &SendOpts { embed: true, ..SendOpts::default() }).await;
        let head: &[u8; RECORD_SIZE] = sent.first_chunk().unwrap();
        let Ok(Record::Begin(begin)) = Record::decode(head, ByteOrder::NATIVE) else { panic!("no stream") };
        let word = |w: u64| if other == ByteOrder::Big { w.to_be_bytes() } else { w.to_le_bytes() };
        // A micro-ZAP: its head of eight words, and one entry: value, collisions, name.
        let mut zap = [1u64 << 63 | 3, 77, 0, 0, 0, 0, 0, 0, 0x1234_5678].map(word).concat();
        zap.extend_from_slice(&[0; 6]);
        zap.extend_from_slice(b"a name");
        zap.resize(112, 0);
        let w = WriteEmbedded {
            object: NEW,
            length: 512,
            compression: Compress::Off as u8,
            lsize: 112,
            psize: 112,
            ..WriteEmbedded::default()
        };
        let told = [
            (Record::Begin(Begin { payloadlen: 0, ..begin.clone() }), Vec::new()),
            (
                Record::Object(Object {
                    object: NEW,
                    otype: DIRECTORY,
                    blksz: 512,
                    dn_slots: 1,
                    ..Object::default()
                }),
                Vec::new(),
            ),
            (Record::WriteEmbedded(w), zap),
            (Record::End(End { toguid: begin.toguid, ..End::default() }), Vec::new()),
        ];
        let told: Vec<Rec> =
            told.into_iter().map(|(r, payload)| (r.encode_in(other).to_vec(), payload.into())).collect();
        p.receive(&stream_in(&told, other), to("tank/b", "one")).await.unwrap();
        let ds = p.dsl().by_name("tank/b@one").await.unwrap();
        let os = p.dsl().objset(&ds).await.unwrap();
        let zap = Zap::open(&os, ObjectId(NEW).0).await.unwrap();
        assert_eq!(zap.get_u64("a name").await.unwrap(), 0x1234_5678);
        drop((zap, os, ds));
        p.export().await;
    });
}
