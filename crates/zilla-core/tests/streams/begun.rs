//! What a receive begins with, or goes on with: snapshots that are not on disk yet, properties, and
//! what the pool lacks.

use super::lies::{records, stream};
use super::raw::{KEY, raw};
use super::*;
use futures_util::future::join;
use zilla_codec::checksum::Checksum;
use zilla_codec::compress::Compress;
use zilla_core::dsl::{PropSource, Refusal, Setting};
use zilla_core::error::Error;
use zilla_core::types::ObjectId;
use zilla_core::zap::Value;
use zilla_ondisk::stream::Begin;
use zilla_ondisk::{ByteOrder, NvList, NvValue, Phys};

fn begin_of(raw: &[u8]) -> Begin {
    match Record::decode(raw.first_chunk().unwrap(), ByteOrder::NATIVE) {
        Ok(Record::Begin(b)) => b,
        other => panic!("no stream: {other:?}"),
    }
}

/// The stream with another number in what it says of its key.
fn with_keydata(raw: &[u8], name: &str, value: u64) -> Vec<u8> {
    let mut told = records(raw);
    let mut list = NvList::unpack(&told[0].1).unwrap();
    let Some(NvValue::List(keydata)) = list.get_mut("crypt_keydata") else { panic!("no key") };
    keydata.set(name, value);
    let payload = list.pack();
    let begin = Begin { payloadlen: payload.len() as u32, ..begin_of(raw) };
    told[0] = (Record::Begin(begin).encode().to_vec(), payload.into());
    stream(&told)
}

fn local(name: &str, value: u64) -> (String, Setting) {
    (name.to_owned(), Setting::Local(Value::u64(value)))
}

impl Pool {
    async fn value(&self, fs: &str, name: &str) -> Option<(u64, PropSource)> {
        let ds = self.dsl().by_name(fs).await.unwrap();
        let prop = self.dsl().prop(&ds, name).await.unwrap();
        prop.map(|p| (p.value.as_u64().unwrap(), p.source))
    }
}

/// What is received would write over the root of a snapshot of the same txg.
#[test]
fn a_receive_on_a_snapshot_of_the_open_txg_waits_for_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/a").await;
        p.fill("tank/a", 0, 10, 1).await;
        p.snapshot("tank/a@one").await;
        p.receive(&p.send("tank/a@one", &SendOpts::default()).await, to("tank/b", "one")).await.unwrap();
        p.fill("tank/a", 3, 4, 2).await;
        p.snapshot("tank/a@two").await;
        let from = p.from("tank/a@one").await;
        let step = p.send("tank/a@two", &SendOpts { from, ..SendOpts::default() }).await;
        let b = begin_of(&step);
        let op: Op<[Error; 2]> = Box::new(move |dsl, tx| {
            Box::pin(async move {
                let names = ["tank/a@now", "tank/b@now"].map(str::to_owned);
                dsl.snapshot(&tx, &names).await?;
                let onto = dsl.recv_begin(&tx, &b, &to("tank/b", "two")).await;
                let fromguid = dsl.by_name("tank/a@now").await?.guid();
                let of_new = Begin { fromguid, ..b.clone() };
                let opts = RecvOpts { origin: Some("tank/a@now".into()), ..to("tank/c", "two") };
                let clone = dsl.recv_begin(&tx, &of_new, &opts).await;
                Ok([onto, clone].map(|done| done.err().expect("it does not begin")))
            })
        });
        for e in p.task(op).await.unwrap() {
            assert!(e.is(Errno::Again), "{e}");
        }
        for none in ["tank/b/%recv", "tank/c"] {
            assert!(p.dsl().by_name(none).await.is_err(), "{none} is there");
        }
        // It is tried again for whoever receives.
        let received = p.receive(&step, to("tank/b", "two"));
        join(p.snapshot("tank/b@then"), received).await.1.unwrap();
        let sent = p.plain("tank/a@two").await;
        same(&sent, &p.plain("tank/b@two").await, "it is there");
        same(&p.plain("tank/a@one").await, &p.plain("tank/b@now").await, "the snapshot has what it had");
        p.export().await;
    });
    zdb_clean(dir.path(), "tank");
}

/// The sync that would write by it could not, and the pool would be suspended.
#[test]
fn a_raw_stream_whose_dnodes_need_what_the_pool_lacks_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let few = [
            "async_destroy",
            "bookmark_v2",
            "bookmarks",
            "encryption",
            "extensible_dataset",
            "hole_birth",
            "spacemap_histogram",
        ];
        let p = Pool::create_with(&env, dir.path(), Some(few.map(str::to_owned).into())).await;
        p.create_crypt("tank/a", 8, KEY).await;
        p.fill("tank/a", 0, 9, 1).await;
        p.snapshot("tank/a@one").await;
        let full = p.send("tank/a@one", &raw()).await;
        let resumable = || RecvOpts { resumable: true, ..to("tank/r", "one") };
        assert!(p.receive(&full[..full.len() / 2], resumable()).await.is_err());
        p.spa.sync().await.unwrap();
        let kept = p.dsl().recv_partial("tank/r").await.unwrap().unwrap();
        let state = p.dsl().resume_state(&kept).await.unwrap().unwrap();
        let resume = Some(Resume { object: state.object, offset: state.offset });
        let rest = p.send("tank/a@one", &SendOpts { resume, ..raw() }).await;
        for (name, value, feature) in [
            ("mdn_checksum", Checksum::Sha512 as u64, "sha512"),
            ("mdn_checksum", Checksum::Blake3 as u64, "blake3"),
            ("mdn_compress", Compress::Zstd as u64, "zstd_compress"),
        ] {
            for (honest, opts) in [(&full, to("tank/new", "one")), (&rest, resumable())] {
                match p.receive(&with_keydata(honest, name, value), opts).await {
                    Err(Error::Refused(why)) => assert_eq!(*why, Refusal::StreamNeedsFeature(feature)),
                    other => panic!("{name} {value}: {other:?}"),
                }
            }
            p.spa.sync().await.unwrap();
            assert!(p.spa.suspended().is_none(), "{name} {value}: it is suspended");
            assert!(p.dsl().by_name("tank/new").await.is_err(), "half a dataset is there");
        }
        p.receive(&rest, resumable()).await.unwrap();
        p.load("tank/r", KEY).await.unwrap();
        same(&p.plain("tank/a@one").await, &p.plain("tank/r@one").await, "it went on");
        p.export().await;
    });
    zdb_clean(dir.path(), "tank");
}

#[test]
fn a_property_that_needs_what_the_pool_lacks_is_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let few = ["async_destroy", "extensible_dataset", "hole_birth"];
        let p = Pool::create_with(&env, dir.path(), Some(few.map(str::to_owned).into())).await;
        p.create_fs("tank/a").await;
        p.fill("tank/a", 0, 5, 1).await;
        p.snapshot("tank/a@one").await;
        let full = p.plain("tank/a@one").await;
        p.receive(&full, to("tank/b", "one")).await.unwrap();
        p.fill("tank/a", 2, 2, 2).await;
        p.snapshot("tank/a@two").await;
        let from = p.from("tank/a@one").await;
        let step = p.send("tank/a@two", &SendOpts { from, ..SendOpts::default() }).await;
        for setting in
            [local("compression", Compress::Zstd as u64), local("checksum", Checksum::Sha512 as u64)]
        {
            for (sent, fs, snap) in [(&full, "tank/new", "one"), (&step, "tank/b", "two")] {
                let opts = RecvOpts { settings: vec![setting.clone()], ..to(fs, snap) };
                let done = p.receive(sent, opts).await;
                assert!(done.as_ref().is_err_and(|e| e.is(Errno::NotSup)), "{fs} {setting:?}: {done:?}");
                p.spa.sync().await.unwrap();
                assert!(p.spa.suspended().is_none(), "{fs} {setting:?}: it is suspended");
            }
        }
        for none in ["tank/b/%recv", "tank/new"] {
            assert!(p.dsl().by_name(none).await.is_err(), "{none} is there");
        }
        p.receive(&step, to("tank/b", "two")).await.unwrap();
        p.export().await;
    });
    zdb_clean(dir.path(), "tank");
}

/// As OpenZFS: `-o` and `-x` are heeded with the rest as well.
#[test]
fn what_goes_on_gets_the_properties_that_come_with_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/a").await;
        p.fill("tank/a", 0, 20, 1).await;
        p.snapshot("tank/a@one").await;
        p.fill("tank/a", 5, 10, 2).await;
        p.snapshot("tank/a@two").await;
        let (lz4, gzip) = (Compress::Lz4 as u64, Compress::Gzip6 as u64);
        for (snap, begin_from) in [("one", None), ("two", p.from("tank/a@one").await)] {
            let of = |resume| SendOpts { from: begin_from, resume, ..SendOpts::default() };
            let sent = p.send(&format!("tank/a@{snap}"), &of(None)).await;
            let resumable = |settings| RecvOpts { resumable: true, settings, ..to("tank/b", snap) };
            let first =
                vec![("atime".to_owned(), Setting::Received(Value::u64(0))), local("compression", lz4)];
            assert!(p.receive(&sent[..sent.len() / 2], resumable(first)).await.is_err());
            p.spa.sync().await.unwrap();
            let ds = p.dsl().recv_partial("tank/b").await.unwrap().unwrap();
            let state = p.dsl().resume_state(&ds).await.unwrap().unwrap();
            drop(ds);
            let resume = Some(Resume { object: state.object, offset: state.offset });
            let rest = p.send(&format!("tank/a@{snap}"), &of(resume)).await;
            if snap == "one" {
                // What cannot be is refused, and the rest can still come.
                let done = p.receive(&rest, resumable(vec![local("quota", 1)])).await;
                assert!(done.as_ref().is_err_and(|e| e.is(Errno::NoSpc)), "{done:?}");
            }
            let settings =
                vec![local("compression", gzip), local("copies", 2), ("atime".to_owned(), Setting::Inherit)];
            p.receive(&rest, resumable(settings)).await.unwrap();
            assert_eq!(p.value("tank/b", "compression").await, Some((gzip, PropSource::Local)), "{snap}");
            assert_eq!(p.value("tank/b", "copies").await, Some((2, PropSource::Local)), "{snap}");
            assert_eq!(p.value("tank/b", "atime").await, None, "{snap}");
        }
        p.export().await;
    });
    zdb_clean(dir.path(), "tank");
}

/// Older versions left it where they could not destroy what they had received: its pool could not
/// be imported any more.
#[test]
fn a_dir_without_a_dataset_keeps_no_pool_from_being_opened() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/left").await;
        p.create_fs("tank/a").await;
        p.fill("tank/a", 0, 3, 1).await;
        let op: Op<()> = Box::new(|dsl, tx| {
            Box::pin(async move {
                let dir = dsl.by_name("tank/left").await?.dir();
                let dn = dsl.mos().hold_wait(ObjectId(dir.id())).await?;
                let mut phys = dir.phys();
                phys.head_dataset_obj = 0;
                dn.set_bonus(&tx, &phys.encode());
                Ok(())
            })
        });
        p.task(op).await.unwrap();
        p.export().await;
        let p = Pool::open(&env, dir.path()).await;
        assert!(p.dsl().by_name("tank/left").await.is_err());
        p.fill("tank/a", 3, 3, 1).await;
        p.export().await;
    });
}
