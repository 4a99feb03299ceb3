//! Wrapped keys of any bytes, as a raw stream has them: refused, or the same when written again;
//! and none opens.
#![no_main]
use libfuzzer_sys::fuzz_target;
use zilla_core::crypt::{DataKey, KeyFormat, WrappingKey};
use zilla_core::dsl::RawKey;
use zilla_ondisk::NvList;

fuzz_target!(|data: &[u8]| {
    let Ok(list) = NvList::unpack(data) else { return };
    let Ok(key) = RawKey::parse(&list) else { return };
    assert_eq!(RawKey::parse(&key.list()).ok().as_ref(), Some(&key));
    let env = zilla_env::real_env(1);
    let Ok(wrapping) = WrappingKey::raw(KeyFormat::Raw, &[1; 32]) else { return };
    assert!(DataKey::unwrap(&*env.rng, &key.phys, &wrapping).is_err(), "nobody has made this key");
});
