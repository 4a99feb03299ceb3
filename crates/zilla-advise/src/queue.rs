//! From what a read costs to how many there are in a second: a closed network of those who read.
//!
//! `n` readers each do something else for a while, then wait at one of some stations, and begin
//! again. Mean value analysis (Reiser and Lavenberg) gives what `n` get done from what `n - 1` do:
//! who arrives finds the queue that the others make among themselves.

/// Where readers wait: the time that a visit takes at one of as many equal servers as there are,
/// each with a queue of its own.
#[derive(Clone, Copy, Debug)]
pub struct Station {
    /// Visits for each turn of a reader.
    pub visits: f64,
    pub seconds: f64,
    pub servers: u64,
}

/// More readers than this are not followed one by one: rates have long ceased to grow.
const MOST: u64 = 1024;

/// Turns a second in all, and how long a visit takes at each station.
pub fn solve(readers: u64, elsewhere: f64, stations: &[Station]) -> (f64, Vec<f64>) {
    let mut queues = vec![0.0f64; stations.len()];
    let (mut rate, mut waits) = (0.0, vec![0.0; stations.len()]);
    for n in 1..=readers.clamp(1, MOST) {
        for ((wait, queue), s) in waits.iter_mut().zip(&queues).zip(stations) {
            *wait = s.seconds * (1.0 + queue / s.servers.max(1) as f64);
        }
        let turn: f64 = elsewhere + waits.iter().zip(stations).map(|(w, s)| w * s.visits).sum::<f64>();
        rate = n as f64 / turn.max(1e-9);
        for ((queue, wait), s) in queues.iter_mut().zip(&waits).zip(stations) {
            *queue = rate * s.visits * wait;
        }
    }
    (rate, waits)
}

/// The time that a visit takes alone, if `readers` who are `elsewhere` so long between two visits
/// wait for `seen` on the average.
pub fn alone(readers: u64, elsewhere: f64, servers: u64, seen: f64) -> f64 {
    let (mut low, mut high) = (0.0, seen);
    for _ in 0..60 {
        let seconds = (low + high) / 2.0;
        let (_, waits) = solve(readers, elsewhere, &[Station { visits: 1.0, seconds, servers }]);
        match waits.first().is_some_and(|w| *w > seen) {
            true => high = seconds,
            false => low = seconds,
        }
    }
    (low + high) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_reader_waits_for_nobody_and_many_for_the_station() {
        let disk = Station { visits: 1.0, seconds: 0.01, servers: 1 };
        assert!((solve(1, 0.0, &[disk]).0 - 100.0).abs() < 1e-6);
        assert!((solve(1, 0.01, &[disk]).0 - 50.0).abs() < 1e-6);
        // However many there are, it does a hundred.
        let (rate, waits) = solve(50, 0.0, &[disk]);
        assert!((rate - 100.0).abs() < 1e-6 && (waits[0] - 0.5).abs() < 1e-6);
        // Four disks, of which each does.
        let four = solve(64, 0.0, &[Station { servers: 4, ..disk }]).0;
        assert!((360.0..=400.0).contains(&four), "{four}");
    }

    #[test]
    fn what_a_visit_takes_alone_is_found_again() {
        for (readers, elsewhere, servers) in [(1, 0.0, 1), (8, 0.0, 1), (8, 0.02, 4), (100, 0.5, 2)] {
            let s = Station { visits: 1.0, seconds: 0.007, servers };
            let seen = solve(readers, elsewhere, &[s]).1[0];
            let found = alone(readers, elsewhere, servers, seen);
            assert!((found - 0.007).abs() < 1e-5, "{readers} {elsewhere} {servers}: {found}");
        }
    }
}
