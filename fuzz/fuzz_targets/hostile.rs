//! A pool that an attacker changed, with every checksum right: the bytes choose what is changed,
//! and into what.
#![no_main]
use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;
use zilla_sim::hostile::{Base, Dice, Limits, Mutant, live};
use zilla_sim::pool::Layout;

static BASE: OnceLock<Base> = OnceLock::new();

fuzz_target!(|data: &[u8]| {
    let base = BASE.get_or_init(|| Base::worked(Layout::Single, 1).expect("a pool"));
    let mutant = Mutant::new(base, &mut Dice::Bytes(data));
    live(&mutant.disks, 1, Limits::default()).unwrap_or_else(|e| panic!("{}: {e}", mutant.what));
});
