//! ZAP blocks: read, changed and split. A leaf that passes `verify` must pass it after every
//! change.
#![no_main]
use libfuzzer_sys::fuzz_target;
use zilla_ondisk::ByteOrder;
use zilla_ondisk::zap::{self, BlockKind, Leaf, LeafMut, MicroZap, ZapKey, ZapPhys, ZapValue, fat};

fn leaf(block: &mut [u8]) {
    let Ok(l) = Leaf::new(block, ByteOrder::NATIVE) else { return };
    let sound = l.verify().is_ok();
    for e in l.iter().filter_map(Result::ok) {
        let _ = (l.name(&e), l.name_u64s(&e), l.value(&e), l.value_u64(&e), l.unused_cd(e.hash));
    }
    let mut at = Some((0, 0));
    for _ in 0..l.num_chunks() {
        let Some((hash, cd)) = at else { break };
        at = l.at_or_after(hash, cd).ok().flatten().map(|e| (e.hash, e.cd.saturating_add(1)));
    }
    let prefix = l.header().prefix.checked_shl(64 - u32::from(l.header().prefix_len)).unwrap_or(0);
    let keys = [ZapKey::string(b"a"), ZapKey::string(&[b'x'; 60]), ZapKey::u64s(&[1, 2, 3])];
    let mut m = LeafMut::new(block).expect("checked above");
    for (i, key) in keys.iter().enumerate() {
        let hash = prefix | (i as u64) << 20;
        let there = m.view().lookup(hash, key).ok().flatten();
        let done = match there {
            Some(e) => m.remove(&e).is_ok(),
            None => match m.insert(hash, key, &ZapValue::u64s(&[7; 5]), None) {
                Ok(e) => m.update(&e, &ZapValue::u64(1)).is_ok(),
                Err(e) => e.is_no_space(),
            },
        };
        assert!(!sound || done);
        assert!(!sound || m.view().verify().is_ok());
    }
    let mut other = vec![0; 1 << m_shift(&m)];
    let split = m.split(&mut other, true);
    if sound && split.is_ok() {
        m.view().verify().expect("a sound leaf stays sound");
        Leaf::new(&other, ByteOrder::NATIVE).and_then(|o| o.verify()).expect("and so is its sibling");
    }
}

/// A leaf's block has the length that its count of chunks comes from.
fn m_shift(m: &LeafMut<'_>) -> u32 {
    (9..25).find(|bs| zap::leaf::num_chunks(*bs) == m.view().num_chunks()).unwrap_or(9)
}

fuzz_target!(|data: &[u8]| {
    for order in [ByteOrder::Little, ByteOrder::Big] {
        match zap::block_kind(data, order) {
            Ok(BlockKind::Micro) => {
                if let Ok(m) = MicroZap::new(data, order) {
                    m.iter().for_each(drop);
                    let _ = (m.find(b"name"), m.free_chunk(0), m.salt(), m.normflags());
                }
            }
            Ok(BlockKind::Header) => {
                if let Ok(z) = ZapPhys::parse(data, order) {
                    let _ = (fat::embedded_leaf(data, z.index(u64::MAX), order), z.table_block(u64::MAX, 14));
                }
            }
            Ok(BlockKind::Leaf | BlockKind::Table) | Err(_) => {}
        }
        let mut block = data.to_vec();
        if zap::to_native(&mut block, order).is_ok() {
            leaf(&mut block);
        }
    }
});
