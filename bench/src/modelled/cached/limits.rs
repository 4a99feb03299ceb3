//! What the devices allow, from their profiles.

use super::stage::CACHE;
use crate::engine::Result;
use std::time::Duration;
use zilla_env::model::Profile;

pub struct Flash(Profile);

impl Flash {
    pub fn new() -> Result<Flash> {
        Ok(Flash(Profile::named(CACHE).ok_or("there is no such profile")?))
    }

    /// Bytes a second that one gives out.
    pub fn rate(&self) -> f64 {
        self.0.media_read.min(self.0.bus) as f64
    }

    /// From the command of a read to its end, if nothing else is asked for.
    pub fn read(&self, bytes: u64) -> Duration {
        let slower = self.0.media_read.min(self.0.bus) as f64;
        self.0.command + self.0.read + Duration::from_secs_f64(bytes as f64 / slower)
    }

    /// Reads of so many bytes a second at random places, if always enough of them wait.
    pub fn reads(&self, bytes: u64) -> f64 {
        let places = self.0.channels as f64 / self.0.read.as_secs_f64();
        places.min(self.rate() / bytes as f64)
    }

    /// The same of several devices, if so many threads ask for one at a time.
    pub fn reads_by(&self, devices: usize, threads: usize, bytes: u64) -> f64 {
        let asked = threads as f64 / self.read(bytes).as_secs_f64();
        asked.min(devices as f64 * self.reads(bytes))
    }
}
