//! Trying something less and less often while it is in vain.

/// How many times it is left out after a try in vain: twice as many after each.
pub struct Backoff {
    /// Powers of two.
    least: u32,
    most: u32,
    next: u32,
    left: u32,
}

impl Backoff {
    pub fn new(least: u32, most: u32) -> Backoff {
        Backoff { least, most, next: least, left: 0 }
    }
    /// Whether it is to be tried this time.
    pub fn ready(&mut self) -> bool {
        let ready = self.left == 0;
        self.left = self.left.saturating_sub(1);
        ready
    }
    pub fn in_vain(&mut self) {
        self.left = (1 << self.next) - 1;
        self.next = (self.next + 1).min(self.most);
    }
    pub fn was_of_use(&mut self) {
        self.next = self.least;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_as_long_each_time_up_to_a_limit() {
        let mut b = Backoff::new(1, 3);
        let mut tries = |vain: bool| {
            let mut skipped = 0;
            while !b.ready() {
                skipped += 1;
            }
            if vain {
                b.in_vain()
            } else {
                b.was_of_use()
            }
            skipped
        };
        let skipped: Vec<u32> = (0..5).map(|_| tries(true)).collect();
        assert_eq!(skipped, [0, 1, 3, 7, 7]);
        assert_eq!([tries(false), tries(true), tries(true)], [7, 0, 1]);
    }
}
