use proptest::prelude::*;

use super::*;

/// Parity by the definition, a byte at a time.
fn by_definition(data: &[Vec<u8>], row: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|i| {
            data.iter().enumerate().fold(0, |sum, (column, bytes)| {
                let factor = gf::power(row * (data.len() - 1 - column));
                sum ^ gf::multiply(factor, bytes.get(i).copied().unwrap_or(0))
            })
        })
        .collect()
}

fn parities(level: Level, data: &[Vec<u8>], n: usize) -> Vec<Vec<u8>> {
    let longest = data.iter().map(Vec::len).max().unwrap();
    let mut out = vec![vec![0xee; longest]; n];
    let columns: Vec<&[u8]> = data.iter().map(|c| &c[..]).collect();
    let mut refs: Vec<&mut [u8]> = out.iter_mut().map(|c| &mut c[..]).collect();
    generate_at(level, &columns, &mut refs).unwrap();
    out
}

/// Columns of a row: the first ones of one length, the others a little shorter, perhaps.
fn row() -> impl Strategy<Value = Vec<Vec<u8>>> {
    (1usize..20, 1usize..1500, 0usize..600, any::<u64>()).prop_map(|(columns, length, shorter, seed)| {
        let mut x = seed | 1;
        (0..columns)
            .map(|i| {
                let length = if i > columns / 2 { length.saturating_sub(shorter) } else { length };
                (0..length)
                    .map(|_| {
                        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        (x >> 56) as u8
                    })
                    .collect()
            })
            .collect()
    })
}

#[test]
fn field() {
    assert_eq!(gf::multiply(0x80, 2), 0x1d);
    for a in 1..=255 {
        assert_eq!((0..=255).filter(|b| gf::multiply(a, *b) == 1).count(), 1);
    }
    assert_eq!((0..255).map(gf::power).collect::<std::collections::HashSet<_>>().len(), 255);
}

#[test]
fn refuses() {
    let data = [&[1u8, 2, 3][..], &[4, 5]];
    assert_eq!(generate(&data, &mut []), Err(RaidzError::ParityCount(0)));
    assert_eq!(generate(&[], &mut [&mut [0; 3]]), Err(RaidzError::DataCount(0)));
    let short = RaidzError::ShortParity { parity: 2, data: 3 };
    assert_eq!(generate(&data, &mut [&mut [0; 2]]), Err(short));
    let (mut a, mut b) = ([1u8, 2, 3], [4u8, 5]);
    let mut data: [&mut [u8]; 2] = [&mut a, &mut b];
    let few = RaidzError::TooFewParity { missing: 2, parity: 1 };
    assert_eq!(reconstruct(&mut data, &[Some(&[5, 7, 3]), None], &[0, 1]), Err(few));
    assert_eq!(reconstruct(&mut data, &[Some(&[5, 7, 3])], &[2]), Err(RaidzError::BadColumn(2)));
    assert_eq!(reconstruct(&mut data, &[Some(&[5, 7, 3])], &[0]), Ok(()));
    assert_eq!((a, b), ([1, 2, 3], [4, 5]));
}

proptest! {
    #[test]
    fn kernels_follow_the_definition(data in row(), n in 1usize..=3) {
        let longest = data.iter().map(Vec::len).max().unwrap();
        for level in cpu::levels() {
            for (row, got) in parities(level, &data, n).into_iter().enumerate() {
                prop_assert_eq!(got, by_definition(&data, row, longest), "{:?} row {}", level, row);
            }
        }
    }

    #[test]
    fn any_columns_come_back(data in row(), lost_parity in 0u8..8, picks in prop::collection::vec(any::<u16>(), 3)) {
        let parity = parities(cpu::level(), &data, 3);
        let there: Vec<Option<&[u8]>> =
            (0..3).map(|i| (lost_parity >> i & 1 == 0).then_some(&parity[i][..])).collect();
        let mut missing: Vec<usize> = picks.iter().map(|pick| usize::from(*pick) % data.len()).collect();
        missing.sort_unstable();
        missing.dedup();
        missing.truncate(there.iter().flatten().count());
        for level in cpu::levels() {
            let mut broken = data.clone();
            missing.iter().for_each(|column| broken[*column].fill(0xa5));
            let mut refs: Vec<&mut [u8]> = broken.iter_mut().map(|c| &mut c[..]).collect();
            reconstruct_at(level, &mut refs, &there, &missing).unwrap();
            prop_assert!(broken == data, "{:?} lost {:?} parity {:?}", level, missing, lost_parity);
        }
    }
}

/// Every set of lost columns of a wide row, with every sufficient set of parities.
#[test]
fn every_combination() {
    let data: Vec<Vec<u8>> = (0..9u8).map(|i| (0..40).map(|j| (i * 27) ^ (j * 5)).collect()).collect();
    let parity = parities(Level::Scalar, &data, 3);
    for lost in 0u32..1 << 9 {
        for kept in 0u32..8 {
            if lost.count_ones() > kept.count_ones() {
                continue;
            }
            let missing: Vec<usize> = (0..9).filter(|i| lost >> i & 1 == 1).collect();
            let there: Vec<Option<&[u8]>> =
                (0..3).map(|i| (kept >> i & 1 == 1).then_some(&parity[i][..])).collect();
            let mut broken = data.clone();
            missing.iter().for_each(|column| broken[*column].fill(0));
            let mut refs: Vec<&mut [u8]> = broken.iter_mut().map(|c| &mut c[..]).collect();
            reconstruct(&mut refs, &there, &missing).unwrap();
            assert!(broken == data, "lost {missing:?}, parities {kept:03b}");
        }
    }
}
