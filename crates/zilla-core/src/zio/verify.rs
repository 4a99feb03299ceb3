//! Whether bytes are the block a pointer means.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use zilla_codec::checksum::{self, ByteOrder as CodecOrder, Checksum, Salted, embedded};
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::object_type::DMU_OT_OBJSET;
use zilla_ondisk::{ByteOrder, Dva};

use super::gang::HeaderSum;

/// Checks a block, as stored on disk, against its pointer.
pub fn block(bp: &BlkPtr, data: &[u8], salt: Option<&Salted>) -> Result<(), String> {
    let kind = kind_of(bp)?;
    if matches!(kind, Checksum::Off | Checksum::NoParity) {
        return Ok(());
    }
    if kind.is_embedded() {
        let verifier = match kind {
            // Log blocks are seeded by the checksum words of the pointer that leads to them.
            Checksum::Zilog | Checksum::Zilog2 => bp.cksum(),
            _ => return Err(format!("checksum {} in a block pointer", kind.name())),
        };
        let verify = if bp.uses_crypt() { embedded::verify_with_mac } else { embedded::verify };
        return verify(kind, data, &verifier).map(drop).map_err(|e| e.to_string());
    }
    let mut actual = checksum::compute(kind, data, !bp.byteorder().is_native(), salt);
    let mut expected = bp.cksum();
    if bp.uses_crypt() && bp.otype() != DMU_OT_OBJSET {
        // Two words of the pointer hold the authentication code instead.
        if !kind.is_dedup() {
            actual[0] ^= actual[2];
            actual[1] ^= actual[3];
        }
        (actual[2], actual[3], expected[2], expected[3]) = (0, 0, 0, 0);
    }
    if actual == expected {
        return Ok(());
    }
    let words = |c: [u64; 4]| c.map(|w| format!("{w:x}")).join(":");
    Err(format!("{} checksum is {}, should be {}", kind.name(), words(actual), words(expected)))
}

/// Whether [`block`] would notice other bytes in the block's place.
pub fn tells_apart(bp: &BlkPtr) -> bool {
    let kind = Checksum::from_u8(bp.checksum_kind());
    kind.is_some_and(|k| {
        k.is_function() && !k.is_embedded() && !matches!(k, Checksum::Off | Checksum::NoParity)
    })
}

fn kind_of(bp: &BlkPtr) -> Result<Checksum, String> {
    let kind = Checksum::from_u8(bp.checksum_kind()).filter(|k| k.is_function());
    kind.ok_or_else(|| format!("checksum kind {} does not exist", bp.checksum_kind()))
}

/// Checks the gang header that a pointer leads to at `dva`, and says in which order it was written.
/// That of an encrypted dataset's pointer is folded ([`super::gang::HeaderSum`]); a whole one is
/// taken too, as zilla wrote them before.
pub fn gang_header(bp: &BlkPtr, dva: &Dva, birth: u64, data: &[u8]) -> Result<ByteOrder, String> {
    let verifier = embedded::gang_verifier(u64::from(dva.vdev), dva.offset, birth);
    let verify = match HeaderSum::of(bp) {
        HeaderSum::Folded => embedded::verify_with_mac,
        HeaderSum::Whole => embedded::verify,
    };
    match verify(Checksum::GangHeader, data, &verifier) {
        Ok(CodecOrder::Little) => Ok(ByteOrder::Little),
        Ok(CodecOrder::Big) => Ok(ByteOrder::Big),
        Err(e) => Err(e.to_string()),
    }
}
