//! The cipher suites by their numbers on disk and their names.

/// A cipher, its mode and its key's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    Aes128Ccm,
    Aes192Ccm,
    Aes256Ccm,
    Aes128Gcm,
    Aes192Gcm,
    Aes256Gcm,
}

impl Suite {
    /// What `encryption=on` means.
    pub const ON_VALUE: Suite = Suite::Aes256Gcm;

    const ALL: [Suite; 6] = [
        Suite::Aes128Ccm,
        Suite::Aes192Ccm,
        Suite::Aes256Ccm,
        Suite::Aes128Gcm,
        Suite::Aes192Gcm,
        Suite::Aes256Gcm,
    ];

    /// Source: `enum zio_encrypt` in sys/fs/zfs.h; 0 is inherit, 1 is on, 2 is off.
    pub const fn number(self) -> u64 {
        self as u64 + 3
    }

    pub fn from_number(n: u64) -> Option<Suite> {
        Suite::ALL.into_iter().find(|s| s.number() == n)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Suite::Aes128Ccm => "aes-128-ccm",
            Suite::Aes192Ccm => "aes-192-ccm",
            Suite::Aes256Ccm => "aes-256-ccm",
            Suite::Aes128Gcm => "aes-128-gcm",
            Suite::Aes192Gcm => "aes-192-gcm",
            Suite::Aes256Gcm => "aes-256-gcm",
        }
    }

    pub const fn is_ccm(self) -> bool {
        matches!(self, Suite::Aes128Ccm | Suite::Aes192Ccm | Suite::Aes256Ccm)
    }

    /// The suite under which keys are wrapped: the same mode, and always 256 bits. Source:
    /// WRAPPING_KEY_LEN in sys/dsl_crypt.h.
    #[must_use]
    pub const fn wrapping(self) -> Suite {
        if self.is_ccm() { Suite::Aes256Ccm } else { Suite::Aes256Gcm }
    }

    /// Bytes of a key.
    pub const fn key_len(self) -> usize {
        match self {
            Suite::Aes128Ccm | Suite::Aes128Gcm => 16,
            Suite::Aes192Ccm | Suite::Aes192Gcm => 24,
            Suite::Aes256Ccm | Suite::Aes256Gcm => 32,
        }
    }
}
