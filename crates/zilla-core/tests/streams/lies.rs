//! Streams of a sender that lies: records changed, left out, told twice or in another order, with
//! the right checksums. Each is refused, or received as something; the pool lives on, and its
//! blocks add up.

use super::raw::{KEY, raw};
use super::*;
use zilla_codec::checksum::Fletcher4;
use zilla_ondisk::ByteOrder;
use zilla_ondisk::stream::{CHECKSUM_OFFSET, RECORD_SIZE};

const TRIES: u64 = 240;

pub type Rec = (Vec<u8>, Bytes);

pub fn records(raw: &[u8]) -> Vec<Rec> {
    let (mut out, mut rest) = (Vec::new(), raw);
    while let Some((head, behind)) = rest.split_first_chunk::<RECORD_SIZE>() {
        let len = Record::decode(head, ByteOrder::NATIVE).unwrap().payload_len() as usize;
        out.push((head.to_vec(), Bytes::copy_from_slice(&behind[..len])));
        rest = &behind[len..];
    }
    out
}

/// The records as a stream with the sums that they should have.
pub fn stream(records: &[Rec]) -> Vec<u8> {
    stream_in(records, ByteOrder::NATIVE)
}

pub fn stream_in(records: &[Rec], order: ByteOrder) -> Vec<u8> {
    let (mut sum, mut out) = (Fletcher4::new(!order.is_native()), Vec::new());
    for (i, (head, payload)) in records.iter().enumerate() {
        let mut head = head.clone();
        let word = |w: u64| if order.is_native() { w } else { w.swap_bytes() }.to_ne_bytes();
        let words = |sum: &Fletcher4| sum.finish().map(word).concat();
        let decoded = Record::decode(head.as_slice().try_into().unwrap(), order);
        if matches!(decoded, Ok(Record::End(_))) {
            head[8..40].copy_from_slice(&words(&sum));
        }
        sum.update(&head[..CHECKSUM_OFFSET]);
        if i > 0 {
            head[CHECKSUM_OFFSET..].copy_from_slice(&words(&sum));
        }
        sum.update(&head[CHECKSUM_OFFSET..]);
        sum.update(payload);
        out.extend_from_slice(&head);
        out.extend_from_slice(payload);
    }
    out
}

fn lie(records: &mut Vec<Rec>, n: u64) {
    let r = |k: u64| super::cuts::mixed(n * 31 + k) as usize;
    let at = 1 + r(1) % (records.len() - 2);
    match n % 6 {
        0 => drop(records.remove(at)),
        1 => records.insert(1 + r(2) % (records.len() - 2), records[at].clone()),
        2 => {
            let other = 1 + r(2) % (records.len() - 2);
            records.swap(at, other);
        }
        // A field, or a part of one; what follows a head is as long as it says.
        _ => {
            let (head, payload) = &mut records[at];
            let byte = 8 + r(2) % 112;
            head[byte] = match r(3) % 4 {
                0 => 0,
                1 => 0xff,
                2 => head[byte] ^ 1 << (r(4) % 8),
                _ => r(4) as u8,
            };
            let head: &[u8; RECORD_SIZE] = head.as_slice().try_into().unwrap();
            let len = Record::decode(head, ByteOrder::NATIVE).map_or(0, |r| r.payload_len());
            let mut data = payload.to_vec();
            data.resize((len as usize).min(1 << 20), 0xa5);
            *payload = data.into();
        }
    }
}

#[test]
fn a_sender_that_lies_is_refused_or_believed_and_the_pool_lives() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/plain").await;
        p.create_crypt("tank/crypt", 8, KEY).await;
        let mut kinds = Vec::new();
        for (fs, one, two, opts) in [
            (
                "tank/plain",
                "tank/plain@one",
                "tank/plain@two",
                SendOpts { embed: true, compressed: true, ..SendOpts::default() },
            ),
            ("tank/crypt", "tank/crypt@one", "tank/crypt@two", raw()),
        ] {
            p.fill(fs, 0, 9, 1).await;
            p.snapshot(one).await;
            p.fill(fs, 3, 5, 2).await;
            p.remove(fs, 0, 2).await;
            p.snapshot(two).await;
            let whole = p.send(one, &opts).await;
            let step = p.send(two, &SendOpts { from: p.from(one).await, ..opts }).await;
            p.receive(&whole, to(if opts.raw { "tank/c" } else { "tank/p" }, "one")).await.unwrap();
            kinds.push((records(&whole), "tank/new"));
            kinds.push((records(&step), if opts.raw { "tank/c" } else { "tank/p" }));
        }
        assert_eq!(
            stream(&kinds[0].0),
            p.send("tank/plain@one", &SendOpts { embed: true, compressed: true, ..SendOpts::default() })
                .await
        );
        let (mut refused, mut believed) = (0, 0);
        for n in 0..TRIES {
            let (honest, target) = &kinds[(n / 6 % 4) as usize];
            let mut told = honest.clone();
            lie(&mut told, n);
            let opts = RecvOpts { force: *target != "tank/new", ..to(target, "two") };
            match p.receive(&stream(&told), opts).await {
                Err(_) => refused += 1,
                Ok(()) => {
                    believed += 1;
                    if n / 6 % 4 >= 2 && *target == "tank/new" {
                        p.load("tank/new", KEY).await.ok();
                    }
                    let snap: &'static str = if *target == "tank/new" {
                        "tank/new@two"
                    } else if *target == "tank/c" {
                        "tank/c@two"
                    } else {
                        "tank/p@two"
                    };
                    let ds = p.dsl().by_name(snap).await.unwrap();
                    // What can be read of it is, and what cannot is an error.
                    let _ = send(p.dsl(), &ds, &SendOpts::default(), &mut Vec::<u8>::new()).await;
                    drop(ds);
                    p.dsl().unload_key("tank/new").await.ok();
                    let op: Op<()> = Box::new(move |dsl, tx| {
                        Box::pin(async move {
                            dsl.destroy_snapshots(&tx, &[snap.to_owned()], false).await?;
                            if snap == "tank/new@two" {
                                dsl.destroy_head(&tx, "tank/new").await
                            } else {
                                Ok(())
                            }
                        })
                    });
                    p.task(op).await.unwrap();
                }
            }
            if *target == "tank/new" {
                assert!(p.dsl().by_name("tank/new").await.is_err(), "try {n} left something");
            }
        }
        assert!(refused > 40 && believed > 40, "{refused} refused, {believed} believed");
        p.export().await;
        zdb_clean(dir.path(), "tank");
    });
}

#[test]
fn what_does_not_decompress_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let p = Pool::create(&env, dir.path()).await;
        p.create_fs("tank/a").await;
        p.fill("tank/a", 0, 9, 1).await;
        p.snapshot("tank/a@one").await;
        let honest =
            p.send("tank/a@one", &SendOpts { embed: true, compressed: true, ..SendOpts::default() }).await;
        let honest = records(&honest);
        let compressed = |(head, _): &Rec| {
            let head: &[u8; RECORD_SIZE] = head.as_slice().try_into().unwrap();
            match Record::decode(head, ByteOrder::NATIVE) {
                Ok(Record::Write(w)) => w.compressiontype != 0,
                Ok(Record::WriteEmbedded(_)) => true,
                _ => false,
            }
        };
        let places: Vec<usize> = (0..honest.len()).filter(|i| compressed(&honest[*i])).collect();
        assert!(places.len() > 5, "{}", places.len());
        for at in places {
            let mut told = honest.clone();
            told[at].1 = vec![0xff; told[at].1.len()].into();
            let done = p.receive(&stream(&told), to("tank/b", "one")).await;
            assert!(done.as_ref().is_err_and(|e| e.to_string().contains("does not decompress")), "{done:?}");
            assert!(p.dsl().by_name("tank/b").await.is_err(), "half a dataset is there");
        }
        p.receive(&stream(&honest), to("tank/b", "one")).await.unwrap();
        p.export().await;
    });
    zdb_clean(dir.path(), "tank");
}
