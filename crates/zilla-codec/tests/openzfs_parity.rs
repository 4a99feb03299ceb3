//! RAID-Z rows that OpenZFS wrote: the parity comes out, and so does every column that is taken
//! away.
//!
//! `openzfs/rows.py` made the lists, that of raidz3 from a pool that ztest left; ZILLA_ROWS names a
//! folder with more of them. ztest damages its disks as it goes: rows whose data is damaged say
//! nothing and are left out.

use std::path::Path;

use zilla_codec::{checksum, raidz};

struct Row {
    parity: Vec<Vec<u8>>,
    data: Vec<Vec<u8>>,
}

fn read(folder: &Path, name: &str) -> Vec<Row> {
    let list = std::fs::read_to_string(folder.join(name).with_extension("txt")).unwrap();
    let blob = std::fs::read(folder.join(name).with_extension("bin")).unwrap();
    let (mut rows, mut damaged) = (Vec::new(), 0);
    for line in list.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let mut at: usize = fields[3].parse().unwrap();
        let mut columns: Vec<Vec<u8>> = Vec::new();
        for length in fields[1].split(',') {
            let length: usize = length.parse().unwrap();
            columns.push(blob[at..at + length].to_vec());
            at += length;
        }
        let data = columns.split_off(fields[0].parse().unwrap());
        // That these are the data columns, in order, is what zdb's word for their checksum says.
        let words = checksum::fletcher4(&data.concat(), false).map(|word| format!("{word:016x}")).join(":");
        if words != fields[2] {
            damaged += 1;
            continue;
        }
        rows.push(Row { parity: columns, data });
    }
    println!("{name}: {} rows, {damaged} damaged", rows.len());
    assert!(damaged < 2 * rows.len(), "the columns are not where they were thought to be");
    rows
}

fn check(row: &Row) {
    let mut parity: Vec<Vec<u8>> = row.parity.iter().map(|column| vec![0xa5; column.len()]).collect();
    let data: Vec<&[u8]> = row.data.iter().map(|column| &column[..]).collect();
    let mut out: Vec<&mut [u8]> = parity.iter_mut().map(|column| &mut column[..]).collect();
    raidz::generate(&data, &mut out).unwrap();
    for (i, (got, stored)) in parity.iter().zip(&row.parity).enumerate() {
        assert!(got == stored, "parity {i} of {} columns", data.len());
    }
    // From OpenZFS's parity: every set of columns, with the last parities as with the first.
    for lost in 1u32..1 << row.data.len() {
        if lost.count_ones() as usize > row.parity.len() {
            continue;
        }
        let missing: Vec<usize> = (0..row.data.len()).filter(|i| lost >> i & 1 == 1).collect();
        for keep_last in [false, true] {
            let mut stored: Vec<Option<&[u8]>> = row.parity.iter().map(|column| Some(&column[..])).collect();
            let unused = stored.len() - missing.len();
            stored
                .iter_mut()
                .skip(if keep_last { 0 } else { missing.len() })
                .take(unused)
                .for_each(|p| *p = None);
            let mut broken = row.data.clone();
            missing.iter().for_each(|column| broken[*column].fill(0xee));
            let mut columns: Vec<&mut [u8]> = broken.iter_mut().map(|column| &mut column[..]).collect();
            raidz::reconstruct(&mut columns, &stored, &missing).unwrap();
            assert!(broken == row.data, "lost {missing:?} of {}", row.data.len());
        }
    }
}

#[test]
fn rows_of_openzfs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openzfs");
    let mut rows: Vec<Row> =
        ["raidz1", "raidz2", "raidz3"].into_iter().flat_map(|name| read(&folder, name)).collect();
    if let Some(folder) = std::env::var_os("ZILLA_ROWS") {
        for name in ["raidz1", "raidz2", "raidz3"] {
            rows.extend(read(Path::new(&folder), name));
        }
    }
    rows.iter().for_each(check);
    for n in 1..=3 {
        let rows = rows.iter().filter(|row| row.parity.len() == n);
        let uneven =
            rows.clone().filter(|row| row.data.iter().any(|column| column.len() != row.data[0].len()));
        println!("raidz{n}: {} rows, {} of them uneven", rows.count(), uneven.clone().count());
        assert!(uneven.count() > 0);
    }
}
