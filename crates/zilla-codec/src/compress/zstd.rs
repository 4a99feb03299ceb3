//! zstd: OpenZFS's eight-byte header and a frame without zstd's own magic number.
//!
//! Header: the frame's length, big-endian, then level and library version packed as
//! `level << 24 | version`, big-endian on disk. Big-endian machines once wrote that word with its
//! parts the other way round (version above, level below); since a version's high byte is zero
//! until zstd 6.55.36, the place of the zero byte tells the layouts apart. The frame carries
//! neither checksum nor content size: the block pointer has both.
//!
//! The level is read back only to keep it: a block that is recompressed must be given the level it
//! had.

use std::cell::RefCell;

use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat};

use super::{Compress, DecompressError, ZstdLevel, lz4};

const HEADER: usize = 8;
/// From this level on, blocks of at least this size are tried with something cheaper first: where
/// neither lz4 nor zstd-1 saves anything, the chosen level hardly ever does, and it costs ten times
/// as much to learn.
const ABORT_LEVEL: i32 = 3;
const ABORT_SIZE: usize = 128 << 10;

/// A compressor that has grown beyond this is given back.
const KEEP: usize = 16 << 20;

thread_local! {
    static COMPRESS: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
    static DECOMPRESS: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

fn new_compressor() -> Option<CCtx<'static>> {
    let mut context = CCtx::try_create()?;
    let parameters = [
        CParameter::Format(FrameFormat::Magicless),
        CParameter::ChecksumFlag(false),
        CParameter::ContentSizeFlag(false),
    ];
    parameters.into_iter().all(|parameter| context.set_parameter(parameter).is_ok()).then_some(context)
}

fn new_decompressor() -> Option<DCtx<'static>> {
    let mut context = DCtx::try_create()?;
    context.set_parameter(DParameter::Format(FrameFormat::Magicless)).ok()?;
    Some(context)
}

pub(super) fn compress(level: ZstdLevel, src: &[u8], dst: &mut [u8]) -> Option<usize> {
    if level.to_zstd() >= ABORT_LEVEL && src.len() >= ABORT_SIZE {
        let first = lz4::compress(src, dst).or_else(|| frame(1, src, dst.get_mut(HEADER..)?));
        first?;
    }
    let (header, body) = dst.split_at_mut_checked(HEADER)?;
    let length = frame(level.to_zstd(), src, body)?;
    let (size, word) = header.split_at_mut_checked(4)?;
    size.copy_from_slice(&u32::try_from(length).ok()?.to_be_bytes());
    let version = zstd_safe::version_number() & 0xff_ffff;
    word.copy_from_slice(&(u32::from(level.to_disk()) << 24 | version).to_be_bytes());
    Some(HEADER + length)
}

fn frame(level: i32, src: &[u8], dst: &mut [u8]) -> Option<usize> {
    COMPRESS.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = new_compressor();
        }
        let context = slot.as_mut()?;
        context.set_parameter(CParameter::CompressionLevel(level)).ok()?;
        let length = context.compress2(dst, src).ok();
        // High levels of large records take a hundred megabytes, which no idle thread may sit on.
        // They are so slow that asking the system for it again does not show.
        if context.sizeof() > KEEP {
            *slot = None;
        }
        length
    })
}

/// The header of a stored block: the frame's length, and the level it was compressed with.
pub fn header(src: &[u8]) -> Result<(usize, ZstdLevel), DecompressError> {
    let bad =
        |claimed: u64| DecompressError::BadLength { kind: Compress::Zstd, claimed, available: src.len() };
    let header = src.first_chunk::<HEADER>().ok_or(bad(HEADER as u64))?;
    let [s0, s1, s2, s3, w0, w1, w2, w3] = *header;
    let length = u32::from_be_bytes([s0, s1, s2, s3]);
    // Which byte is zero says where the version's high byte is, and so on which side the level
    // stands. Asked in the order OpenZFS asks.
    let level = if w3 == 0 {
        w0
    } else if w2 == 0 {
        w3
    } else if w1 == 0 {
        w0
    } else if w0 == 0 {
        w3
    } else {
        0
    };
    let level = ZstdLevel::from_disk(level).ok_or(DecompressError::BadLevel { level })?;
    let fits =
        usize::try_from(length).ok().filter(|n| n.checked_add(HEADER).is_some_and(|end| end <= src.len()));
    Ok((fits.ok_or(bad(u64::from(length)))?, level))
}

pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), DecompressError> {
    let corrupt = DecompressError::Corrupt(Compress::Zstd);
    let (length, _) = header(src)?;
    let frame = src.get(HEADER..HEADER + length).ok_or(corrupt)?;
    let expected = dst.len();
    let produced = DECOMPRESS.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = new_decompressor();
        }
        let context = slot.as_mut().ok_or(DecompressError::NoMemory(Compress::Zstd))?;
        context.decompress(dst, frame).map_err(|_| corrupt)
    })?;
    if produced == expected {
        Ok(())
    } else {
        Err(DecompressError::WrongSize { kind: Compress::Zstd, produced, expected })
    }
}
