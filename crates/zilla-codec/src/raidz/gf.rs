//! GF(2^8) with the polynomial x^8+x^4+x^3+x^2+1 (0x11d), in which 2 generates everything but zero;
//! and the inversion of the small matrices of reconstruction. Nothing here runs per byte of data.

use super::MAX_PARITY;

/// 2^i, twice round so that a sum of two logarithms needs no reduction.
const EXP: [u8; 510] = {
    let mut exp = [0; 510];
    let (mut i, mut x) = (0, 1u8);
    while i < 510 {
        exp[i] = x;
        x = double(x);
        i += 1;
    }
    exp
};

const LOG: [u8; 256] = {
    let mut log = [0; 256];
    let mut i = 0;
    while i < 255 {
        log[EXP[i] as usize] = i as u8;
        i += 1;
    }
    log
};

const fn double(x: u8) -> u8 {
    x << 1 ^ if x & 0x80 != 0 { 0x1d } else { 0 }
}

pub(super) const fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 { 0 } else { EXP[LOG[a as usize] as usize + LOG[b as usize] as usize] }
}

/// 2^i for any i.
pub(super) const fn power(i: usize) -> u8 {
    EXP[i % 255]
}

const fn inverse(a: u8) -> u8 {
    EXP[255 - LOG[a as usize] as usize]
}

/// The products of a factor with the low and with the high half of a byte: 32 entries for any
/// product.
pub(super) fn nibbles(factor: u8) -> [[u8; 16]; 2] {
    let mut tables = [[0; 16]; 2];
    for i in 0..16u8 {
        tables[0][usize::from(i)] = multiply(factor, i);
        tables[1][usize::from(i)] = multiply(factor, i << 4);
    }
    tables
}

/// Multiplication by a factor as a matrix of bits, as the affine instruction wants it: it works for
/// every polynomial, unlike the instruction that multiplies. Byte 7 - i holds the row of result bit
/// i.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(super) const fn bit_matrix(factor: u8) -> u64 {
    let mut matrix = 0;
    let mut j = 0;
    while j < 8 {
        let column = multiply(factor, 1 << j);
        let mut i = 0;
        while i < 8 {
            matrix |= ((column >> i & 1) as u64) << (8 * (7 - i) + j);
            i += 1;
        }
        j += 1;
    }
    matrix
}

/// A square matrix of at most three rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Matrix {
    pub size: usize,
    pub rows: [[u8; MAX_PARITY]; MAX_PARITY],
}

impl Matrix {
    /// Row i, column k: what parity row `rows[i]` multiplies the column with Horner exponent
    /// `exponents[k]` by, (2^row)^exponent.
    pub fn vandermonde(rows: &[usize], exponents: &[usize]) -> Self {
        let mut matrix = Matrix { size: rows.len(), rows: Default::default() };
        for (out, row) in matrix.rows.iter_mut().zip(rows) {
            for (out, exponent) in out.iter_mut().zip(exponents) {
                *out = power(row * exponent);
            }
        }
        matrix
    }

    /// Gauss and Jordan. The matrix is invertible: its rows are geometric with distinct ratios.
    pub fn inverse(mut self) -> Self {
        let n = self.size;
        let mut out = Matrix { size: n, rows: Default::default() };
        for i in 0..n {
            out.rows[i][i] = 1;
        }
        for step in 0..n {
            let pivot = (step..n).find(|row| self.rows[*row][step] != 0).unwrap_or(step);
            self.rows.swap(step, pivot);
            out.rows.swap(step, pivot);
            let scale = inverse(self.rows[step][step]);
            for k in 0..n {
                self.rows[step][k] = multiply(self.rows[step][k], scale);
                out.rows[step][k] = multiply(out.rows[step][k], scale);
            }
            for row in (0..n).filter(|row| *row != step) {
                let factor = self.rows[row][step];
                for k in 0..n {
                    self.rows[row][k] ^= multiply(factor, self.rows[step][k]);
                    out.rows[row][k] ^= multiply(factor, out.rows[step][k]);
                }
            }
        }
        out
    }
}
