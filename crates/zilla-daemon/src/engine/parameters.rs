//! Tunables as files: the module parameters that scripts look for below
//! `/sys/module/zfs/parameters`, in a folder of one's own.
//!
//! Where `ZILLA_PARAMETERS` names a folder, every tunable has a file there with its value. What is
//! written to it counts for whatever a command asks for after that, and for the rest a moment
//! later. What is no number is not taken, and the file says again what counts. To begin with that
//! is what `parameters.conf` said, or the default (`configured.rs`). Links and pipes in the folder
//! are passed over (`outside.rs`).

use super::outside::Place;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use zilla::tunables::{self, Tunable};

/// How soon a change counts if nobody asks for anything.
const EVERY: Duration = Duration::from_millis(100);

/// The folder with the files.
#[derive(Clone)]
pub struct Parameters(Arc<PathBuf>);

impl Parameters {
    /// Makes the files, and follows them as long as the process lives.
    pub fn serve() -> Option<Parameters> {
        let dir = std::env::var_os("ZILLA_PARAMETERS").filter(|d| !d.is_empty()).map(PathBuf::from)?;
        if let Err(e) = make(&dir) {
            tracing::error!("'{}': {e}", dir.display());
            return None;
        }
        let served = Parameters(Arc::new(dir));
        let own = served.clone();
        tokio::spawn(async move {
            loop {
                own.follow().await;
                tokio::time::sleep(EVERY).await;
            }
        });
        Some(served)
    }

    /// Takes over what the files say now.
    pub async fn follow(&self) {
        let dir = self.0.clone();
        // The folder may be anywhere, also in a file system that is slow.
        let all = move || match Place::open(&dir) {
            Ok(place) => tunables::ALL.iter().for_each(|t| follow(&place, t)),
            Err(e) => tracing::debug!("'{}': {e}", dir.display()),
        };
        if let Err(e) = tokio::task::spawn_blocking(all).await {
            tracing::error!("tunables are not followed: {e}");
        }
    }
}

fn make(dir: &Path) -> std::io::Result<()> {
    let place = Place::make(dir)?;
    tunables::ALL.iter().try_for_each(|t| write(&place, t))
}

fn write(place: &Place, tunable: &Tunable) -> std::io::Result<()> {
    place.write(Path::new(tunable.name), &format!("{}\n", tunable.text()))
}

/// Takes over what the file says.
fn follow(place: &Place, tunable: &Tunable) {
    // It may just be being written: what is empty is looked at again.
    let Ok(text) = place.read(Path::new(tunable.name)) else { return };
    match text.trim() {
        "" => {}
        word => match read(tunable, word) {
            Some(n) if n != tunable.get() => tunable.set(n),
            Some(_) => {}
            None => drop(write(place, tunable)),
        },
    }
}

/// The value that a word stands for.
pub(super) fn read(tunable: &Tunable, word: &str) -> Option<u64> {
    match tunable.words() {
        [] if word.starts_with("0x") => u64::from_str_radix(&word[2..], 16).ok(),
        [] => zilla_control::props::parse_size(word).ok(),
        words => words.iter().position(|w| *w == word).and_then(|i| u64::try_from(i).ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_steers_its_tunable() {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path()).unwrap();
        let place = Place::open(dir.path()).unwrap();
        let t = &tunables::COMMIT_TIMEOUT_PCT;
        let path = dir.path().join(t.name);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", t.default));
        std::fs::write(&path, "64\n").unwrap();
        follow(&place, t);
        assert_eq!(t.get(), 64);
        std::fs::write(&path, "many\n").unwrap();
        follow(&place, t);
        assert_eq!((t.get(), std::fs::read_to_string(&path).unwrap().as_str()), (64, "64\n"));
        std::fs::write(&path, "").unwrap();
        follow(&place, t);
        assert_eq!(t.get(), 64);
        // A choice has words.
        let t = &tunables::DEADMAN_FAILMODE;
        let path = dir.path().join(t.name);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "wait\n");
        for (word, value) in [("panic", 2), ("perhaps", 2), ("1", 2), ("wait", 0)] {
            std::fs::write(&path, word).unwrap();
            follow(&place, t);
            assert_eq!(t.get(), value, "{word}");
        }
    }
}
