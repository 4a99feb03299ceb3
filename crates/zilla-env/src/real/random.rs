//! The kernel's random numbers.

use rustix::rand::{GetRandomFlags, getrandom};

use crate::Rng;

pub(super) struct KernelRng;

impl Rng for KernelRng {
    fn fill(&self, mut out: &mut [u8]) {
        while !out.is_empty() {
            match getrandom(&mut *out, GetRandomFlags::empty()) {
                Ok(n) => out = &mut out[n..],
                Err(rustix::io::Errno::INTR) => {}
                // Keys and salts depend on it, so there is nothing to fall back to.
                Err(e) => panic!("the kernel gives no random numbers: {e}"),
            }
        }
    }
}
