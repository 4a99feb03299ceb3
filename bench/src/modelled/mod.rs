//! What log devices are worth: published tests, run on modelled devices in virtual time.

mod copy;
mod perrin;
mod rig;

use crate::engine::Result;
use lexopt::ValueExt;
use serde_json::{Value, json};

/// Virtual seconds of each measurement.
const SECONDS: u64 = 10;

pub fn run(seconds: u64) -> Result<Value> {
    Ok(json!({ "perrin": perrin::run(seconds)?, "copy": copy::run()? }))
}

pub fn main(mut args: lexopt::Parser) -> Result<()> {
    let mut seconds = SECONDS;
    while let Some(arg) = args.next()? {
        match arg {
            lexopt::Arg::Long("seconds") => seconds = args.value()?.parse()?,
            other => return Err(other.unexpected().into()),
        }
    }
    println!("{}", run(seconds)?);
    Ok(())
}
