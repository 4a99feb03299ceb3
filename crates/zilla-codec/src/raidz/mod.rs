//! RAID-Z parity: up to three parity columns over the data columns of a row, and back.
//!
//! Columns are strings of bytes, bytes are elements of GF(2^8) with the polynomial
//! x^8+x^4+x^3+x^2+1. Over n data columns D0 .. Dn-1, at every byte position:
//!
//! - P = D0 + D1 + ... + Dn-1
//! - Q = 2^(n-1) D0 + ... + 2 Dn-2 + Dn-1
//! - R = 4^(n-1) D0 + ... + 4 Dn-2 + Dn-1
//!
//! A row's last columns may be one sector shorter than its first; what they lack counts as zeroes.
//! Parity is as long as the longest data column. Everything works in Horner's form, one doubling a
//! column, and parity of any subset of columns is what reconstruction starts from: the difference
//! between the stored parity and the parity of the columns still there is a small linear system in
//! the missing ones. Any m of the three parities determine any m columns (the rows are those of a
//! Vandermonde matrix with distinct nodes, up to 255 columns), so the matrix can always be
//! inverted.
//!
//! - `gf`: the field's arithmetic on single bytes, and the inversion;
//! - `scalar`, `x86`: the kernels, which do not know what a RAID-Z is.

mod gf;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::mem;

use smallvec::SmallVec;

use crate::cpu::{self, Level};
use gf::Matrix;

/// The most parity columns there are.
pub const MAX_PARITY: usize = 3;
/// The most data columns for which any m parities determine any m columns.
pub const MAX_DATA: usize = 255;
/// Reconstruction works on stretches of this many bytes, so that what it makes on the way stays in
/// the L1.
const STRETCH: usize = 4096;

/// Why columns could not be worked out. All but `TooFewParity` are mistakes of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RaidzError {
    #[error("{missing} data columns are missing, but only {parity} parity columns are there")]
    TooFewParity { missing: usize, parity: usize },
    #[error("{0} parity columns; raidz has 1 to 3")]
    ParityCount(usize),
    #[error("{0} data columns; raidz has 1 to 255")]
    DataCount(usize),
    #[error("missing column {0} is out of range or named twice")]
    BadColumn(usize),
    #[error("a parity column of {parity} bytes is shorter than a data column of {data}")]
    ShortParity { parity: usize, data: usize },
}

/// A set of parity rows, as bits 0 to 2 for P, Q and R.
#[derive(Clone, Copy)]
struct Rows(u8);

impl Rows {
    const fn has(self, row: usize) -> bool {
        self.0 >> row & 1 == 1
    }
}

/// Works out P, or P and Q, or P, Q and R, by how many columns `parity` has. Each is at least as
/// long as the longest data column; bytes behind that become zeroes.
pub fn generate(data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), RaidzError> {
    generate_at(cpu::level(), data, parity)
}

/// [`generate`] with the kernel of a given level, for tests and benchmarks.
pub fn generate_at(level: Level, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), RaidzError> {
    let level = level.min(cpu::level());
    if !(1..=MAX_PARITY).contains(&parity.len()) {
        return Err(RaidzError::ParityCount(parity.len()));
    }
    let longest = check_data(data.iter().map(|column| column.len()))?;
    for column in parity.iter_mut() {
        let length = column.len();
        let Some(rest) = column.get_mut(longest..) else {
            return Err(RaidzError::ShortParity { parity: length, data: longest });
        };
        rest.fill(0);
    }
    let rows = Rows((1 << parity.len()) - 1);
    let mut out: [&mut [u8]; 3] = Default::default();
    for (out, column) in out.iter_mut().zip(parity) {
        *out = &mut column[..longest];
    }
    sums(level, data, 0, rows, out);
    Ok(())
}

/// Works out the data columns `missing` from the others and the parity that is there (`None`: it is
/// not). What the missing columns hold is overwritten; nothing else changes.
pub fn reconstruct(
    data: &mut [&mut [u8]],
    parity: &[Option<&[u8]>],
    missing: &[usize],
) -> Result<(), RaidzError> {
    reconstruct_at(cpu::level(), data, parity, missing)
}

/// [`reconstruct`] with the kernels of a given level, for tests and benchmarks.
pub fn reconstruct_at(
    level: Level,
    data: &mut [&mut [u8]],
    parity: &[Option<&[u8]>],
    missing: &[usize],
) -> Result<(), RaidzError> {
    let level = level.min(cpu::level());
    if !(1..=MAX_PARITY).contains(&parity.len()) {
        return Err(RaidzError::ParityCount(parity.len()));
    }
    check_data(data.iter().map(|column| column.len()))?;
    for (i, column) in missing.iter().enumerate() {
        if *column >= data.len() || missing[..i].contains(column) {
            return Err(RaidzError::BadColumn(*column));
        }
    }
    let there: SmallVec<[(usize, &[u8]); 3]> =
        parity.iter().enumerate().filter_map(|(row, column)| column.map(|column| (row, column))).collect();
    let Some(used) = there.get(..missing.len()) else {
        return Err(RaidzError::TooFewParity { missing: missing.len(), parity: there.len() });
    };
    let needed = missing.iter().map(|column| data[*column].len()).max().unwrap_or(0);
    for (_, column) in used {
        if column.len() < needed {
            return Err(RaidzError::ShortParity { parity: column.len(), data: needed });
        }
    }

    let exponents: SmallVec<[usize; 3]> = missing.iter().map(|column| data.len() - 1 - column).collect();
    let rows: SmallVec<[usize; 3]> = used.iter().map(|(row, _)| *row).collect();
    let matrix = Matrix::vandermonde(&rows, &exponents).inverse();

    // The missing columns are taken out of the row while the others are read.
    let mut targets: SmallVec<[&mut [u8]; 3]> =
        missing.iter().map(|column| mem::take(&mut data[*column])).collect();
    {
        let known: SmallVec<[&[u8]; 32]> = data.iter().map(|column| &**column).collect();
        solve(level, &known, used, &matrix, &mut targets, needed);
    }
    for (column, target) in missing.iter().zip(targets) {
        data[*column] = target;
    }
    Ok(())
}

/// Fills `targets`: the product of `matrix` and, for each parity used, its difference to the parity
/// of the known columns.
fn solve(
    level: Level,
    known: &[&[u8]],
    used: &[(usize, &[u8])],
    matrix: &Matrix,
    targets: &mut [&mut [u8]],
    needed: usize,
) {
    if let ([(0, parity)], [target]) = (used, &mut *targets) {
        // P alone: the missing column is the exclusive or of everything else, and P is one column
        // more.
        let all: SmallVec<[&[u8]; 32]> = known.iter().copied().chain([*parity]).collect();
        return sums(level, &all, 0, Rows(1), [target, &mut [], &mut []]);
    }
    let rows = Rows(used.iter().fold(0, |rows, (row, _)| rows | 1 << row));
    let mut space = [[0u8; STRETCH]; 3];
    for from in (0..needed).step_by(STRETCH) {
        let length = STRETCH.min(needed - from);
        let [p, q, r] = &mut space;
        sums(level, known, from, rows, [&mut p[..length], &mut q[..length], &mut r[..length]]);
        for (row, column) in used {
            xor(&mut space[*row][..length], &column[from..]);
        }
        for (target, factors) in targets.iter_mut().zip(&matrix.rows) {
            let Some(target) = target.get_mut(from..) else { continue };
            let length = length.min(target.len());
            let terms: SmallVec<[(u8, &[u8]); 3]> = used
                .iter()
                .zip(factors)
                .map(|((row, _), factor)| (*factor, &space[*row][..length]))
                .collect();
            combine(level, &terms, &mut target[..length]);
        }
    }
}

/// The bytes from `from` on of the parities `rows` over `data`, as many as `out` is long; columns
/// that end earlier count as zeroes. Rows not asked for leave their `out` alone.
fn sums(level: Level, data: &[&[u8]], from: usize, rows: Rows, mut out: [&mut [u8]; 3]) {
    let longest = (0..3).filter(|row| rows.has(*row)).map(|row| out[row].len()).max().unwrap_or(0);
    let (mut at, end) = (from, from + longest);
    // Between two column ends every column is either there or not: no kernel needs to ask per byte.
    while at < end {
        let to = data.iter().map(|column| column.len()).filter(|n| *n > at).min().unwrap_or(end).min(end);
        let mut piece = out.each_mut().map(|out| out.split_off_mut(..to - at).unwrap_or_default());
        let done = sums_wide(level, data, at..to, rows, &mut piece);
        let rest = piece.map(|out| out.get_mut(done..).unwrap_or_default());
        scalar::sums(data, at + done..to, rows, rest);
        at = to;
    }
}

/// `dst` = the sum of the terms, each a factor and a string of bytes as long as `dst`.
fn combine(level: Level, terms: &[(u8, &[u8])], dst: &mut [u8]) {
    let done = combine_wide(level, terms, dst);
    scalar::combine(terms, done, dst);
}

fn xor(dst: &mut [u8], src: &[u8]) {
    for (dst, src) in dst.iter_mut().zip(src) {
        *dst ^= src;
    }
}

#[cfg(target_arch = "x86_64")]
use x86::{combine as combine_wide, sums as sums_wide};

#[cfg(not(target_arch = "x86_64"))]
fn combine_wide(_: Level, _: &[(u8, &[u8])], _: &mut [u8]) -> usize {
    0
}

#[cfg(not(target_arch = "x86_64"))]
fn sums_wide(_: Level, _: &[&[u8]], _: std::ops::Range<usize>, _: Rows, _: &mut [&mut [u8]; 3]) -> usize {
    0
}

fn check_data(lengths: impl ExactSizeIterator<Item = usize>) -> Result<usize, RaidzError> {
    match lengths.len() {
        1..=MAX_DATA => Ok(lengths.max().unwrap_or(0)),
        n => Err(RaidzError::DataCount(n)),
    }
}

#[cfg(test)]
mod tests;
